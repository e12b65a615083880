"""GroupService: messages in, messages out; what goes wrong is told by its code and a sentence."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, Final, Protocol, TypeVar

from tailrace.coordinator.group import Caller, Group
from tailrace.coordinator.records import CONSUMER, Member, Position
from tailrace.coordinator.runtime import Runtime
from tailrace.coordinator.shard import Asked
from tailrace.errors import (
    CoordinatorLoading,
    InvalidRequest,
    InvariantViolation,
    RebalanceInProgress,
    TailraceError,
    Unreachable,
)
from tailrace.model import NO_LEADER_EPOCH, TopicPartition, topic_name_problem
from tailrace.runtime import Tasks
from tailrace.transport import methods
from tailrace.transport.rpc import CALLER, Handler, Method, Stream
from tailrace.transport.wire import code_of, from_partition, to_partition
from tailrace.v1 import group_pb2 as pb

SESSION_TIMEOUT_MS: Final = 45_000
REBALANCE_TIMEOUT_MS: Final = 300_000
NAMES_PER_REQUEST_MAX: Final = 10_000
MEMBER_ID_LENGTH_MAX: Final = 300
# Requests of one stream that wait for their answers.
COMMITS_MAX: Final = 10_000
# Commits of all streams that wait for the log. With more, nobody is read any further for a while:
# what is taken in beyond that costs memory and turns of the loop, on which the lease hangs too.
COMMITS_IN_ALL_MAX: Final = 10_000
# But no longer than this, since it may be but one shard whose log does not go on.
ROOM_WAIT_MS: Final = 500
# Commits in one message.
COMMITS_PER_MESSAGE_MAX: Final = 10_000
# Partitions whose names are known to be good.
PARTITIONS_KNOWN_MAX: Final = 16_384

_CommitStream = Stream[pb.StreamCommitsResponse, pb.StreamCommitsRequest]
_HeartbeatStream = Stream[pb.HeartbeatResponse, pb.HeartbeatRequest]


class _Response(Protocol):
    """A response that can say what went wrong."""

    def __init__(self, *, error: Any = ..., message: str = ...) -> None: ...


R = TypeVar("R", bound=_Response)


class CommitRoom:
    """How many commits wait for the log."""

    def __init__(self) -> None:
        self._freed = asyncio.Event()
        self.taken = 0

    def take(self, commits: int) -> None:
        self.taken += commits

    def free(self, commits: int) -> None:
        self.taken -= commits
        self._freed.set()

    async def wait(self) -> None:
        """Wait for room, or long enough."""
        if self.taken < COMMITS_IN_ALL_MAX:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(ROOM_WAIT_MS / 1_000):
                while self.taken >= COMMITS_IN_ALL_MAX:
                    self._freed.clear()
                    await self._freed.wait()


class CommitAnswers:
    """The answers of one stream of commits: they gather while one is being sent."""

    def __init__(self, stream: _CommitStream) -> None:
        self._stream = stream
        self._ready: deque[pb.StreamCommitsResponse] = deque()
        self._wake = asyncio.Event()
        self._sent = asyncio.Event()
        # How many requests are not answered.
        self.owed = 0

    def add(self, response: pb.StreamCommitsResponse) -> None:
        self._ready.append(response)
        self._wake.set()

    async def until_room(self) -> None:
        """Wait while too many are not answered: the client is not read any further."""
        while self.owed >= COMMITS_MAX:
            self._sent.clear()
            await self._sent.wait()

    async def until_done(self) -> None:
        while self.owed:
            self._sent.clear()
            await self._sent.wait()

    async def run(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._ready:
                    await self._stream.send(self._ready.popleft())
                    self.owed -= 1
                self._sent.set()
        except Unreachable:
            # Who reads the stream sees it too.
            return


class GroupService:
    """Answers for the groups of one coordinator."""

    def __init__(
        self,
        coordinator_id: int,
        *,
        runtime: Callable[[], Runtime],
        wall_ms: Callable[[], int],
        tasks: Tasks,
    ) -> None:
        self._coordinator_id = coordinator_id
        self._runtime = runtime
        self._wall_ms = wall_ms
        self._tasks = tasks
        self.room = CommitRoom()
        # The heartbeat stream of each member that has one.
        self._streams: dict[tuple[str, str], _HeartbeatStream] = {}

    def handlers(self) -> Mapping[Method[Any, Any], Handler]:
        return {
            methods.GROUP_JOIN: self.join,
            methods.GROUP_SYNC: self.sync,
            methods.GROUP_HEARTBEAT: self.heartbeat,
            methods.GROUP_LEAVE: self.leave,
            methods.GROUP_COMMIT_OFFSETS: self.commit,
            methods.GROUP_STREAM_COMMITS: self.stream_commits,
            methods.GROUP_FETCH_OFFSETS: self.fetch,
            methods.GROUP_LIST: self.list_groups,
            methods.GROUP_DESCRIBE: self.describe,
            methods.GROUP_DELETE: self.delete_groups,
            methods.GROUP_DELETE_OFFSETS: self.delete_offsets,
        }

    # Members.

    async def join(self, request: pb.JoinGroupRequest) -> pb.JoinGroupResponse:
        try:
            joined = await self._runtime().join(
                request.group, _member(request), request.proposed_member_id
            )
        except TailraceError as error:
            return _failed(pb.JoinGroupResponse, error)
        return pb.JoinGroupResponse(
            member_id=joined.member_id,
            generation=joined.generation,
            protocol=joined.protocol,
            leader_member_id=joined.leader,
            members=[
                pb.JoinedMember(
                    member_id=each.member_id,
                    instance_id=each.instance_id,
                    metadata=each.metadata(joined.protocol),
                )
                for each in joined.members
            ],
            skip_assignment=joined.skip_assignment,
        )

    async def sync(self, request: pb.SyncGroupRequest) -> pb.SyncGroupResponse:
        caller = Caller(request.member_id, request.instance_id, request.generation)
        assignments = {each.member_id: each.assignment for each in request.assignments}
        try:
            synced = await self._runtime().sync(request.group, caller, assignments)
        except TailraceError as error:
            return _failed(pb.SyncGroupResponse, error)
        return pb.SyncGroupResponse(protocol=synced.protocol, assignment=synced.assignment)

    async def heartbeat(self, stream: _HeartbeatStream) -> None:
        """Answer each sign of life; a rebalance is announced on the same stream."""
        mine: tuple[str, str] | None = None
        try:
            while (request := await stream.recv()) is not None:
                key = request.group, request.member_id
                if key != mine:
                    self._stop_listening(mine, stream)
                    mine = key
                    self._streams[key] = stream
                await stream.send(await self._beat(request))
        except Unreachable:
            return
        finally:
            self._stop_listening(mine, stream)

    def announce(self, group: str, member_id: str, error: TailraceError | None) -> None:
        """Tell a member that has a stream here of a rebalance, or of something worse."""
        stream = self._streams.get((group, member_id))
        if stream is None:
            return
        why = error or RebalanceInProgress(f"group {group!r} is rebalancing: join again")
        message = pb.HeartbeatResponse(error=code_of(why), message=str(why), pushed=True)
        self._tasks.spawn("announce a rebalance", _send(stream, message))

    async def leave(self, request: pb.LeaveGroupRequest) -> pb.LeaveGroupResponse:
        callers = [Caller(each.member_id, each.instance_id) for each in request.members]
        try:
            results = await self._runtime().leave(request.group, callers)
        except TailraceError as error:
            return _failed(pb.LeaveGroupResponse, error)
        response = pb.LeaveGroupResponse()
        for each, problem in zip(request.members, results, strict=True):
            left = response.members.add(member_id=each.member_id, instance_id=each.instance_id)
            if problem is not None:
                left.error, left.message = code_of(problem), str(problem)
        return response

    # Positions.

    async def commit(self, request: pb.CommitOffsetsRequest) -> pb.CommitOffsetsResponse:
        caller, kind = _caller(request), request.kind or CONSUMER
        await self.room.wait()
        self.room.take(1)
        try:
            asked = _all_asked(request, kind, self._wall_ms())
            results = await self._runtime().commit(request.group, caller, asked, kind=kind)
        except TailraceError as error:
            return _failed(pb.CommitOffsetsResponse, error)
        finally:
            self.room.free(1)
        return _committed(asked, results)

    async def stream_commits(self, stream: _CommitStream) -> None:
        """Take commits as they come, answer each when the log has it."""
        answers = CommitAnswers(stream)
        answering = self._tasks.spawn("answer commits", answers.run())
        try:
            while (request := await stream.recv()) is not None:
                answers.owed += 1
                if request.commits:
                    self._commit_all(request, answers)
                else:
                    self._commit_alone(request, answers)
                await answers.until_room()
                await self.room.wait()
            await answers.until_done()
        except Unreachable:
            return
        finally:
            answering.cancel()

    def _commit_alone(self, request: pb.StreamCommitsRequest, answers: CommitAnswers) -> None:
        """Answer when the commit is in the log, or known not to be."""
        correlation, room = request.correlation, self.room
        room.take(1)

        def answer(result: pb.CommitOffsetsResponse | None) -> None:
            room.free(1)
            answers.add(pb.StreamCommitsResponse(correlation=correlation, result=result))

        self._commit_one(request.commit, answer, is_told=True)

    def _commit_all(self, request: pb.StreamCommitsRequest, answers: CommitAnswers) -> None:
        """Answer when all that the request commits is in the log, or known not to be."""
        response = pb.StreamCommitsResponse(correlation=request.correlation)
        waiting = count = len(request.commits)
        if count > COMMITS_PER_MESSAGE_MAX:
            error = InvalidRequest(f"a message has at most {COMMITS_PER_MESSAGE_MAX} commits")
            response.result.CopyFrom(_failed(pb.CommitOffsetsResponse, error))
            answers.add(response)
            return

        def answer(index: int, result: pb.CommitOffsetsResponse | None) -> None:
            nonlocal waiting
            waiting -= 1
            if result is not None:
                response.problems.add(index=index, result=result)
            if not waiting:
                self.room.free(count)
                answers.add(response)

        self.room.take(count)
        for index, commit in enumerate(request.commits):
            self._commit_one(commit, partial(answer, index), is_told=False)

    def _commit_one(
        self,
        commit: pb.CommitOffsetsRequest,
        answer: Callable[[pb.CommitOffsetsResponse | None], None],
        *,
        is_told: bool,
    ) -> None:
        """`answer` gets the result, or None when all was stored, unless that `is_told`."""
        kind = commit.kind or CONSUMER

        def then(error: TailraceError | None, results: Sequence[TailraceError | None]) -> None:
            if error is not None:
                answer(_failed(pb.CommitOffsetsResponse, error))
            elif is_told or any(results):
                answer(_committed(asked, results))
            else:
                answer(None)

        try:
            asked = _all_asked(commit, kind, self._wall_ms())
            self._runtime().commit_soon(commit.group, _caller(commit), asked, then, kind=kind)
        except TailraceError as error:
            answer(_failed(pb.CommitOffsetsResponse, error))

    async def fetch(self, request: pb.FetchOffsetsRequest) -> pb.FetchOffsetsResponse:
        try:
            wanted = [from_partition(each) for each in request.partitions]
            found = await self._runtime().positions(request.group, wanted)
        except TailraceError as error:
            return _failed(pb.FetchOffsetsResponse, error)
        response = pb.FetchOffsetsResponse()
        for partition, position in found:
            one = response.offsets.add(
                topic=partition.topic, partition=partition.partition, offset=-1, leader_epoch=-1
            )
            if position is not None:
                one.offset = position.offset
                one.topic_id = position.topic_id
                one.leader_epoch = position.leader_epoch
                one.metadata = position.metadata
                one.commit_ms = position.commit_ms
        return response

    async def delete_offsets(self, request: pb.DeleteOffsetsRequest) -> pb.DeleteOffsetsResponse:
        try:
            partitions = [from_partition(each) for each in request.partitions]
            results = await self._runtime().delete_positions(request.group, partitions)
        except TailraceError as error:
            return _failed(pb.DeleteOffsetsResponse, error)
        response = pb.DeleteOffsetsResponse()
        for partition, problem in zip(partitions, results, strict=True):
            _add_result(response.partitions, partition, problem)
        return response

    # Groups.

    async def list_groups(self, request: pb.ListGroupsRequest) -> pb.ListGroupsResponse:
        wanted = set(request.states)
        listed = self._runtime().list()
        response = pb.ListGroupsResponse(
            groups=[
                pb.ListedGroup(
                    group=each.name,
                    state=each.facts.phase.value,
                    kind=each.kind,
                    members=len(each.facts.members),
                )
                for each in listed.groups
                if not wanted or each.facts.phase.value in wanted
            ]
        )
        if listed.loading:
            error = CoordinatorLoading(f"{listed.loading} shards are still being read")
            response.error, response.message = code_of(error), str(error)
        return response

    async def describe(self, request: pb.DescribeGroupsRequest) -> pb.DescribeGroupsResponse:
        response = pb.DescribeGroupsResponse()
        for name in request.groups[:NAMES_PER_REQUEST_MAX]:
            try:
                found = await self._runtime().describe(name)
            except TailraceError as error:
                response.groups.add(group=name, error=code_of(error), message=str(error))
            else:
                response.groups.append(self._description(found))
        return response

    async def delete_groups(self, request: pb.DeleteGroupsRequest) -> pb.DeleteGroupsResponse:
        response = pb.DeleteGroupsResponse()
        for name in request.groups[:NAMES_PER_REQUEST_MAX]:
            result = response.groups.add(group=name)
            try:
                await self._runtime().delete(name)
            except TailraceError as error:
                result.error, result.message = code_of(error), str(error)
        return response

    # Inside.

    async def _beat(self, request: pb.HeartbeatRequest) -> pb.HeartbeatResponse:
        caller = Caller(request.member_id, request.instance_id, request.generation)
        try:
            generation = await self._runtime().heartbeat(request.group, caller)
        except TailraceError as error:
            return _failed(pb.HeartbeatResponse, error)
        return pb.HeartbeatResponse(generation=generation)

    def _stop_listening(self, key: tuple[str, str] | None, stream: _HeartbeatStream) -> None:
        if key is not None and self._streams.get(key) is stream:
            del self._streams[key]

    def _description(self, group: Group) -> pb.GroupDescription:
        facts = group.facts
        return pb.GroupDescription(
            group=group.name,
            state=facts.phase.value,
            kind=group.kind,
            protocol=facts.protocol,
            generation=facts.generation,
            leader_member_id=facts.leader,
            members=[
                pb.GroupMember(
                    member_id=each.member_id,
                    instance_id=each.instance_id,
                    client_id=each.client_id,
                    host=each.host,
                    metadata=each.metadata(facts.protocol),
                    assignment=each.assignment,
                    session_timeout_ms=each.session_timeout_ms,
                    rebalance_timeout_ms=each.rebalance_timeout_ms,
                )
                for each in facts.members.values()
            ],
            coordinator_id=self._coordinator_id,
            shard=self._runtime().shard_of(group.name),
            state_ms=facts.phase_ms,
        )


def _failed(kind: type[R], error: TailraceError) -> R:
    if isinstance(error, InvariantViolation):
        raise error
    return kind(error=code_of(error), message=str(error))


async def _send(stream: _HeartbeatStream, message: pb.HeartbeatResponse) -> None:
    try:
        await stream.send(message)
    except Unreachable:
        # It will see that the stream is broken.
        return


def _member(request: pb.JoinGroupRequest) -> Member:
    names = (
        *(request.member_id, request.instance_id, request.client_id),
        request.proposed_member_id,
    )
    if max(map(len, names)) > MEMBER_ID_LENGTH_MAX:
        raise InvalidRequest(f"ids of members have at most {MEMBER_ID_LENGTH_MAX} characters")
    return Member(
        member_id=request.member_id,
        instance_id=request.instance_id,
        client_id=request.client_id,
        host=_host(CALLER.get()()),
        session_timeout_ms=request.session_timeout_ms or SESSION_TIMEOUT_MS,
        rebalance_timeout_ms=request.rebalance_timeout_ms or REBALANCE_TIMEOUT_MS,
        protocols=tuple((each.name, each.metadata) for each in request.protocols),
    )


def _host(peer: str) -> str:
    """`ipv4:10.0.0.1:4711` without what nobody needs."""
    kind, _, address = peer.partition(":")
    return address.rpartition(":")[0].strip("[]") if kind in {"ipv4", "ipv6"} else peer


def _caller(request: pb.CommitOffsetsRequest) -> Caller:
    return Caller(
        request.member_id, request.instance_id, request.generation, request.keeps_partitions
    )


def _all_asked(request: pb.CommitOffsetsRequest, kind: str, now_ms: int) -> list[Asked]:
    asked = [_asked(each, kind, now_ms) for each in request.offsets]
    if len(asked) > 1 and len({each.partition for each in asked}) != len(asked):
        raise InvalidRequest("a commit names each of its partitions once")
    return asked


def _committed(
    asked: Sequence[Asked], results: Sequence[TailraceError | None]
) -> pb.CommitOffsetsResponse:
    response = pb.CommitOffsetsResponse()
    for each, problem in zip(asked, results, strict=True):
        _add_result(response.partitions, each.partition, problem)
    return response


def _asked(offset: pb.OffsetToCommit, kind: str, now_ms: int) -> Asked:
    epoch = offset.leader_epoch if offset.HasField("leader_epoch") else int(NO_LEADER_EPOCH)
    return Asked(
        _partition(offset.topic, offset.partition),
        Position(offset.offset, epoch, offset.topic_id, offset.metadata, now_ms, kind),
    )


@lru_cache(PARTITIONS_KNOWN_MAX)
def _partition(topic: str, number: int) -> TopicPartition:
    """Those that are committed for come again and again."""
    problem = topic_name_problem(topic)
    if problem is not None:
        raise InvalidRequest(problem)
    return TopicPartition(topic, number)


def _add_result(results: Any, partition: TopicPartition, problem: TailraceError | None) -> None:
    one = results.add(partition=to_partition(partition))
    if problem is not None:
        one.error, one.message = code_of(problem), str(problem)
