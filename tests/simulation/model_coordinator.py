"""A model of the coordinators of groups, for tests of consumers: few lines that keep the rules.

Groups belong to the model cluster, as if they were stored; coordinators only serve them, and one of
them owns all groups at a time. Where it differs from the shipped one, that one is right: it is
tested with shipped consumers elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from tailrace.errors import (
    CoordinatorLoading,
    FencedInstance,
    IllegalGeneration,
    NotCoordinator,
    RebalanceInProgress,
    TailraceError,
    UnknownMember,
    UnknownTopic,
    Unreachable,
)
from tailrace.model import TopicPartition
from tailrace.runtime import Tasks
from tailrace.transport import methods
from tailrace.transport.rpc import Handler, Method, Network, Server, Stream
from tailrace.transport.wire import code_of, from_partition
from tailrace.v1 import group_pb2 as pb

CHECK_MS: Final = 50
# How long a group that gets its first member waits for others.
FIRST_WAIT_MS: Final = 20


class ModelMember:
    """A member, and what it waits for."""

    def __init__(self, member_id: str, request: pb.JoinGroupRequest) -> None:
        self.member_id = member_id
        self.instance_id = request.instance_id
        self.metadata = b""
        self.session_ms = request.session_timeout_ms
        self.rebalance_ms = request.rebalance_timeout_ms
        self.heard_s = 0.0
        self.assignment = b""
        self.joining: asyncio.Future[None] | None = None
        self.streams: list[Stream[pb.HeartbeatResponse, pb.HeartbeatRequest]] = []


class ModelGroup:
    """One group, as it is stored."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.generation = 0
        self.state = "Empty"
        self.protocol = ""
        self.leader = ""
        self.members: dict[str, ModelMember] = {}
        self.offsets: dict[TopicPartition, pb.CommittedOffset] = {}
        self.changed = asyncio.Event()
        self.began_s = 0.0
        self.joins = 0
        # (generation, partition, offset) of every commit that was taken.
        self.commits: list[tuple[int, TopicPartition, int]] = []

    def member(self, member_id: str, instance_id: str = "") -> ModelMember:
        found = self.members.get(member_id)
        if found is None:
            if instance_id and any(e.instance_id == instance_id for e in self.members.values()):
                raise FencedInstance(f"{instance_id} was started again")
            raise UnknownMember(f"{self.name} has no member {member_id!r}")
        return found

    def notify(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()


class ModelCoordinators:
    """All coordinators and the groups."""

    def __init__(self, numbers: range) -> None:
        self.groups: dict[str, ModelGroup] = {}
        self.all = {number: ModelCoordinator(self, number) for number in numbers}
        self.owner = numbers[0]
        self.epoch = 1
        self.is_loading = False
        # So many commits are refused because the coordinator has not heard of the topic yet.
        self.behind = 0
        # How many commits came over streams.
        self.streamed = 0
        # No leader of a group brings its assignment while this is not set.
        self.assigning = asyncio.Event()
        self.assigning.set()
        self.problems: list[str] = []
        self.tasks = Tasks(lambda name, error: self.problems.append(f"{name}: {error!r}"))

    async def start(self, network_for: Callable[[str], Network], address: str) -> None:
        for number, each in self.all.items():
            name = f"g{number}"
            await each.start(network_for(name), address.format(name=name))
        self.tasks.spawn("sessions", self._expire())

    async def stop(self) -> None:
        await self.tasks.close()
        for each in self.all.values():
            if each.server is not None:
                await each.server.stop(grace_ms=0)

    def move(self, owner: int) -> None:
        """Another coordinator takes the groups over: what waited at the old one is refused."""
        self.owner = owner
        self.epoch += 1
        for group in self.groups.values():
            for member in group.members.values():
                member.heard_s = asyncio.get_running_loop().time()
                if member.joining is not None and not member.joining.done():
                    member.joining.set_exception(NotCoordinator("moved"))
                member.joining = None
            group.notify()

    def group(self, name: str, number: int) -> ModelGroup:
        if number != self.owner:
            raise NotCoordinator(f"{self.owner} owns it")
        if self.is_loading:
            raise CoordinatorLoading("in a moment")
        return self.groups.setdefault(name, ModelGroup(name))

    async def _expire(self) -> None:
        while True:
            await asyncio.sleep(CHECK_MS / 1000)
            now_s = asyncio.get_running_loop().time()
            for group in list(self.groups.values()):
                for member in list(group.members.values()):
                    late_ms = (now_s - member.heard_s) * 1000
                    if member.joining is None and late_ms > member.session_ms:
                        self.remove(group, member)
                if group.state == "PreparingRebalance":
                    self._complete(group, now_s)

    def remove(self, group: ModelGroup, member: ModelMember) -> None:
        group.members.pop(member.member_id, None)
        if member.joining is not None and not member.joining.done():
            member.joining.set_exception(UnknownMember("it left"))
        self.prepare(group)

    def prepare(self, group: ModelGroup) -> None:
        """A rebalance begins; everybody hears of it at once."""
        if group.state != "PreparingRebalance":
            group.state = "PreparingRebalance"
            group.began_s = asyncio.get_running_loop().time()
            group.notify()
            for member in group.members.values():
                for stream in member.streams:
                    self.tasks.spawn("announce", _announce(stream, group.generation))

    def _complete(self, group: ModelGroup, now_s: float) -> None:
        late = [each for each in group.members.values() if each.joining is None]
        longest_ms = max((each.rebalance_ms for each in group.members.values()), default=0)
        waited_ms = (now_s - group.began_s) * 1000
        if (late and waited_ms < longest_ms) or waited_ms < FIRST_WAIT_MS:
            return
        for member in late:
            del group.members[member.member_id]
        group.generation += 1
        group.state = "CompletingRebalance" if group.members else "Empty"
        group.leader = next(iter(group.members), "")
        for member in group.members.values():
            member.heard_s = now_s
            if member.joining is not None and not member.joining.done():
                member.joining.set_result(None)
            member.joining = None
        group.notify()


class ModelCoordinator:
    """Serves members as a coordinator does."""

    def __init__(self, coordinators: ModelCoordinators, number: int) -> None:
        self._all = coordinators
        self.number = number
        self.address = ""
        self.server: Server | None = None

    async def start(self, network: Network, address: str) -> None:
        handlers: Mapping[Method[Any, Any], Handler] = {
            methods.GROUP_JOIN: self.join,
            methods.GROUP_SYNC: self.sync,
            methods.GROUP_HEARTBEAT: self.heartbeat,
            methods.GROUP_LEAVE: self.leave,
            methods.GROUP_COMMIT_OFFSETS: self.commit,
            methods.GROUP_STREAM_COMMITS: self.stream_commits,
            methods.GROUP_FETCH_OFFSETS: self.fetch,
        }
        self.server = await network.serve(address, handlers)
        self.address = self.server.address

    async def join(self, request: pb.JoinGroupRequest) -> pb.JoinGroupResponse:
        response = pb.JoinGroupResponse(member_id=request.member_id)
        try:
            group = self._all.group(request.group, self.number)
            member = self._joining(group, request)
            response.member_id = member.member_id
            member.metadata = request.protocols[0].metadata
            group.protocol = request.protocols[0].name
            member.joining = asyncio.get_running_loop().create_future()
            self._all.prepare(group)
            await member.joining
        except TailraceError as error:
            response.error, response.message = code_of(error), str(error)
            return response
        response.generation = group.generation
        response.protocol = group.protocol
        response.leader_member_id = group.leader
        if group.leader == member.member_id:
            for each in group.members.values():
                response.members.add(
                    member_id=each.member_id, instance_id=each.instance_id, metadata=each.metadata
                )
        return response

    def _joining(self, group: ModelGroup, request: pb.JoinGroupRequest) -> ModelMember:
        if request.member_id:
            return group.member(request.member_id, request.instance_id)
        group.joins += 1
        member = ModelMember(f"m{group.joins}", request)
        for old in list(group.members.values()):
            if request.instance_id and old.instance_id == request.instance_id:
                # A static member that came back takes over its old place.
                del group.members[old.member_id]
        member.heard_s = asyncio.get_running_loop().time()
        group.members[member.member_id] = member
        return member

    async def sync(self, request: pb.SyncGroupRequest) -> pb.SyncGroupResponse:
        response = pb.SyncGroupResponse()
        try:
            group = self._all.group(request.group, self.number)
            member = self._checked(group, request)
            await self._all.assigning.wait()
            if group.leader == member.member_id and group.state == "CompletingRebalance":
                for each in group.members.values():
                    each.assignment = b""
                for given in request.assignments:
                    group.members[given.member_id].assignment = given.assignment
                group.state = "Stable"
                group.notify()
            while group.state != "Stable":
                if group.state == "PreparingRebalance":
                    raise RebalanceInProgress("join again")
                changed = group.changed
                await changed.wait()
                self._all.group(request.group, self.number)
                self._checked(group, request)
        except TailraceError as error:
            response.error, response.message = code_of(error), str(error)
            return response
        member.heard_s = asyncio.get_running_loop().time()
        response.assignment = member.assignment
        return response

    def _checked(self, group: ModelGroup, request: Any) -> ModelMember:
        member = group.member(request.member_id, request.instance_id)
        if request.generation != group.generation:
            raise IllegalGeneration(f"{request.generation}, now {group.generation}")
        return member

    async def heartbeat(self, stream: Stream[pb.HeartbeatResponse, pb.HeartbeatRequest]) -> None:
        member: ModelMember | None = None
        try:
            while (request := await stream.recv()) is not None:
                response = pb.HeartbeatResponse()
                try:
                    group = self._all.group(request.group, self.number)
                    response.generation = group.generation
                    member = self._checked(group, request)
                    member.heard_s = asyncio.get_running_loop().time()
                    if stream not in member.streams:
                        member.streams.append(stream)
                    if group.state == "PreparingRebalance":
                        raise RebalanceInProgress("join again")
                except TailraceError as error:
                    response.error, response.message = code_of(error), str(error)
                await stream.send(response)
        except Unreachable:
            return
        finally:
            if member is not None and stream in member.streams:
                member.streams.remove(stream)

    async def leave(self, request: pb.LeaveGroupRequest) -> pb.LeaveGroupResponse:
        response = pb.LeaveGroupResponse()
        try:
            group = self._all.group(request.group, self.number)
            for each in request.members:
                self._all.remove(group, group.member(each.member_id))
        except TailraceError as error:
            response.error, response.message = code_of(error), str(error)
        return response

    async def commit(self, request: pb.CommitOffsetsRequest) -> pb.CommitOffsetsResponse:
        response = pb.CommitOffsetsResponse()
        try:
            group = self._all.group(request.group, self.number)
            if request.generation >= 0 or group.members:
                self._checked(group, request).heard_s = asyncio.get_running_loop().time()
                if group.state == "CompletingRebalance" and not request.keeps_partitions:
                    raise RebalanceInProgress("in a moment")
            if self._all.behind:
                self._all.behind -= 1
                raise UnknownTopic("not heard of it yet")
        except TailraceError as error:
            response.error, response.message = code_of(error), str(error)
            return response
        for each in request.offsets:
            partition = TopicPartition(each.topic, each.partition)
            group.offsets[partition] = pb.CommittedOffset(
                topic=each.topic,
                topic_id=each.topic_id,
                partition=each.partition,
                offset=each.offset,
                leader_epoch=each.leader_epoch,
                metadata=each.metadata,
            )
            group.commits.append((request.generation, partition, each.offset))
        return response

    async def stream_commits(
        self, stream: Stream[pb.StreamCommitsResponse, pb.StreamCommitsRequest]
    ) -> None:
        with suppress(Unreachable):
            while (request := await stream.recv()) is not None:
                result = await self.commit(request.commit)
                self._all.streamed += 1
                await stream.send(
                    pb.StreamCommitsResponse(correlation=request.correlation, result=result)
                )

    async def fetch(self, request: pb.FetchOffsetsRequest) -> pb.FetchOffsetsResponse:
        response = pb.FetchOffsetsResponse()
        try:
            group = self._all.group(request.group, self.number)
        except TailraceError as error:
            response.error, response.message = code_of(error), str(error)
            return response
        for each in request.partitions:
            partition = from_partition(each)
            none = pb.CommittedOffset(
                topic=each.topic, partition=each.partition, offset=-1, leader_epoch=-1
            )
            response.offsets.append(group.offsets.get(partition, none))
        return response


async def _announce(
    stream: Stream[pb.HeartbeatResponse, pb.HeartbeatRequest], generation: int
) -> None:
    news = pb.HeartbeatResponse(
        error=code_of(RebalanceInProgress("")), generation=generation, pushed=True
    )
    with suppress(Unreachable):
        await stream.send(news)
