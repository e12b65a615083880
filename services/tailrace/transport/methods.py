"""Every RPC of the protocol, as a `Method` with its codecs.

The names are those of `proto/tailrace/v1`; a test compares both. Nothing else is known here. What
carries batches has codecs of its own (`envelopes`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from tailrace.errors import InvalidRequest
from tailrace.transport import envelopes
from tailrace.transport.rpc import (
    MESSAGE_BYTES_MAX,
    REQUEST_BYTES_MAX,
    REQUEST_ENTRIES_MAX,
    Bytes,
    Kind,
    Method,
)
from tailrace.v1 import broker_pb2 as broker
from tailrace.v1 import control_pb2 as control
from tailrace.v1 import controller_pb2 as controller
from tailrace.v1 import group_pb2 as group

# Fields of a request besides those that are repeated, however often they come.
FIELDS_BESIDE: Final = 100

Q = TypeVar("Q", bound=Message)
R = TypeVar("R", bound=Message)


def _decoder(message: type[R]) -> Callable[[Bytes], R]:
    """Protobuf takes views as well as bytes, which its types do not say."""
    decode: Callable[[Any], R] = message.FromString
    return decode


def _bounded_decoder(
    message: type[Q], entries_max: int = REQUEST_ENTRIES_MAX
) -> Callable[[Bytes], Q]:
    """As `_decoder`, and of nothing more entries than that."""
    decode = _decoder(message)
    repeated = [each.name for each in message.DESCRIPTOR.fields if each.is_repeated]
    if not repeated:
        return decode

    # Small ones cannot have as many: an entry is two bytes at least.
    small, fields_max = 2 * entries_max, len(repeated) * entries_max + FIELDS_BESIDE

    def bounded(data: Bytes) -> Q:
        if len(data) > small:
            envelopes.check_fields(data, fields_max)
        request = decode(data)
        for name in repeated:
            count = len(getattr(request, name))
            if count > entries_max:
                raise InvalidRequest(
                    f"a request with {count} {name}: at most {entries_max} go in one, send several"
                )
        return request

    return bounded


def _method(
    name: str,
    kind: Kind,
    request: type[Q],
    response: type[R],
    *,
    request_bytes_max: int = REQUEST_BYTES_MAX,
    entries_max: int = REQUEST_ENTRIES_MAX,
    grows: bool = False,
) -> Method[Q, R]:
    """`grows`: what a controller tells brokers, on a port of its own, grows with the cluster."""
    return Method(
        request_bytes_max=request_bytes_max,
        name=f"/tailrace.v1.{name}",
        kind=kind,
        encode_request=request.SerializeToString,
        decode_request=(_decoder(request) if grows else _bounded_decoder(request, entries_max)),
        encode_response=response.SerializeToString,
        decode_response=_decoder(response),
    )


BROKER_PRODUCE: Final = Method(
    name="/tailrace.v1.BrokerService/Produce",
    kind=Kind.BIDI_STREAM,
    encode_request=envelopes.encode_produce_request,
    decode_request=envelopes.decode_produce_request,
    encode_response=broker.ProduceResponse.SerializeToString,
    decode_response=_decoder(broker.ProduceResponse),
)
BROKER_FETCH: Final = Method(
    name="/tailrace.v1.BrokerService/Fetch",
    kind=Kind.BIDI_STREAM,
    encode_request=broker.FetchRequest.SerializeToString,
    decode_request=_bounded_decoder(broker.FetchRequest),
    encode_response=envelopes.encode_fetch_response,
    decode_response=envelopes.decode_fetch_response,
    request_bytes_max=REQUEST_BYTES_MAX,
)
BROKER_LIST_OFFSETS: Final = _method(
    "BrokerService/ListOffsets",
    Kind.UNARY,
    broker.ListOffsetsRequest,
    broker.ListOffsetsResponse,
)
BROKER_WATCH_METADATA: Final = _method(
    "BrokerService/WatchMetadata",
    Kind.SERVER_STREAM,
    broker.WatchMetadataRequest,
    broker.WatchMetadataResponse,
)
BROKER_DELETE_RECORDS: Final = _method(
    "BrokerService/DeleteRecords",
    Kind.UNARY,
    broker.DeleteRecordsRequest,
    broker.DeleteRecordsResponse,
)
BROKER_DESCRIBE_REPLICAS: Final = _method(
    "BrokerService/DescribeReplicas",
    Kind.UNARY,
    broker.DescribeReplicasRequest,
    broker.DescribeReplicasResponse,
)
BROKER_DESCRIBE_STRAYS: Final = _method(
    "BrokerService/DescribeStrays",
    Kind.UNARY,
    broker.DescribeStraysRequest,
    broker.DescribeStraysResponse,
)
BROKER_DESCRIBE_DELETIONS: Final = _method(
    "BrokerService/DescribeDeletions",
    Kind.UNARY,
    broker.DescribeDeletionsRequest,
    broker.DescribeDeletionsResponse,
)
BROKER_DIAGNOSE: Final = _method(
    "BrokerService/Diagnose",
    Kind.UNARY,
    broker.DiagnoseRequest,
    broker.DiagnoseResponse,
)
BROKER_ALLOCATE_PRODUCER_ID: Final = _method(
    "BrokerService/AllocateProducerId",
    Kind.UNARY,
    broker.AllocateProducerIdRequest,
    broker.AllocateProducerIdResponse,
)

CONTROL_HEALTH: Final = _method(
    "BrokerControlService/Health",
    Kind.SERVER_STREAM,
    control.HealthRequest,
    control.HealthResponse,
)
CONTROL_LEADER_AND_ISR: Final = _method(
    "BrokerControlService/LeaderAndIsr",
    Kind.UNARY,
    control.LeaderAndIsrRequest,
    control.LeaderAndIsrResponse,
    request_bytes_max=MESSAGE_BYTES_MAX,
    grows=True,
)
CONTROL_STOP_REPLICA: Final = _method(
    "BrokerControlService/StopReplica",
    Kind.UNARY,
    control.StopReplicaRequest,
    control.StopReplicaResponse,
)
CONTROL_UPDATE_METADATA: Final = _method(
    "BrokerControlService/UpdateMetadata",
    Kind.UNARY,
    control.UpdateMetadataRequest,
    control.UpdateMetadataResponse,
    request_bytes_max=MESSAGE_BYTES_MAX,
    grows=True,
)
CONTROL_UPDATE_SETTINGS: Final = _method(
    "BrokerControlService/UpdateSettings",
    Kind.UNARY,
    control.UpdateSettingsRequest,
    control.UpdateSettingsResponse,
    grows=True,
)
CONTROL_READ_RECOVERY_FACTS: Final = _method(
    "BrokerControlService/ReadRecoveryFacts",
    Kind.SERVER_STREAM,
    control.ReadRecoveryFactsRequest,
    control.ReadRecoveryFactsResponse,
)

CONTROLLER_CREATE_TOPIC: Final = _method(
    "ControllerService/CreateTopic",
    Kind.UNARY,
    controller.CreateTopicRequest,
    controller.CreateTopicResponse,
)
CONTROLLER_DELETE_TOPIC: Final = _method(
    "ControllerService/DeleteTopic",
    Kind.UNARY,
    controller.DeleteTopicRequest,
    controller.DeleteTopicResponse,
)
CONTROLLER_INIT_PRODUCER: Final = _method(
    "ControllerService/InitProducer",
    Kind.UNARY,
    controller.InitProducerRequest,
    controller.InitProducerResponse,
)
CONTROLLER_CONTROLLED_SHUTDOWN: Final = _method(
    "ControllerService/ControlledShutdown",
    Kind.UNARY,
    controller.ControlledShutdownRequest,
    controller.ControlledShutdownResponse,
)
CONTROLLER_FENCE_BROKER: Final = _method(
    "ControllerService/FenceBroker",
    Kind.UNARY,
    controller.FenceBrokerRequest,
    controller.FenceBrokerResponse,
)
CONTROLLER_EXPLAIN: Final = _method(
    "ControllerService/Explain",
    Kind.UNARY,
    controller.ExplainRequest,
    controller.ExplainResponse,
)
CONTROLLER_ALTER_CONFIG: Final = _method(
    "ControllerService/AlterConfig",
    Kind.UNARY,
    controller.AlterConfigRequest,
    controller.AlterConfigResponse,
)
CONTROLLER_DESCRIBE_CONFIGS: Final = _method(
    "ControllerService/DescribeConfigs",
    Kind.UNARY,
    controller.DescribeConfigsRequest,
    controller.DescribeConfigsResponse,
)
CONTROLLER_ADD_PARTITIONS: Final = _method(
    "ControllerService/AddPartitions",
    Kind.UNARY,
    controller.AddPartitionsRequest,
    controller.AddPartitionsResponse,
)
CONTROLLER_ELECT_LEADERS: Final = _method(
    "ControllerService/ElectLeaders",
    Kind.UNARY,
    controller.ElectLeadersRequest,
    controller.ElectLeadersResponse,
)
CONTROLLER_CORDON_BROKER: Final = _method(
    "ControllerService/CordonBroker",
    Kind.UNARY,
    controller.CordonBrokerRequest,
    controller.CordonBrokerResponse,
)
CONTROLLER_DESCRIBE_BROKERS: Final = _method(
    "ControllerService/DescribeBrokers",
    Kind.UNARY,
    controller.DescribeBrokersRequest,
    controller.DescribeBrokersResponse,
)
CONTROLLER_REASSIGN: Final = _method(
    "ControllerService/Reassign",
    Kind.UNARY,
    controller.ReassignRequest,
    controller.ReassignResponse,
)
CONTROLLER_CANCEL_REASSIGNMENTS: Final = _method(
    "ControllerService/CancelReassignments",
    Kind.UNARY,
    controller.CancelReassignmentsRequest,
    controller.CancelReassignmentsResponse,
)
CONTROLLER_LIST_REASSIGNMENTS: Final = _method(
    "ControllerService/ListReassignments",
    Kind.UNARY,
    controller.ListReassignmentsRequest,
    controller.ListReassignmentsResponse,
)

GROUP_JOIN: Final = _method(
    "GroupService/JoinGroup",
    Kind.UNARY,
    group.JoinGroupRequest,
    group.JoinGroupResponse,
)
GROUP_SYNC: Final = _method(
    "GroupService/SyncGroup",
    Kind.UNARY,
    group.SyncGroupRequest,
    group.SyncGroupResponse,
    # The assignments of all members of a group: `group.max.bytes` of them, and their ids.
    request_bytes_max=4 * REQUEST_BYTES_MAX,
)
GROUP_HEARTBEAT: Final = _method(
    "GroupService/Heartbeat",
    Kind.BIDI_STREAM,
    group.HeartbeatRequest,
    group.HeartbeatResponse,
)
GROUP_LEAVE: Final = _method(
    "GroupService/LeaveGroup",
    Kind.UNARY,
    group.LeaveGroupRequest,
    group.LeaveGroupResponse,
)
GROUP_COMMIT_OFFSETS: Final = _method(
    "GroupService/CommitOffsets",
    Kind.UNARY,
    group.CommitOffsetsRequest,
    group.CommitOffsetsResponse,
    # Ten thousand commits, with names of groups and topics.
    request_bytes_max=2 * REQUEST_BYTES_MAX,
)
GROUP_STREAM_COMMITS: Final = _method(
    "GroupService/StreamCommits",
    Kind.BIDI_STREAM,
    group.StreamCommitsRequest,
    group.StreamCommitsResponse,
    # Ten thousand commits, with names of groups and topics.
    request_bytes_max=2 * REQUEST_BYTES_MAX,
    # The coordinator refuses what is above REQUEST_ENTRIES_MAX, and the stream goes on.
    entries_max=2 * REQUEST_ENTRIES_MAX,
)
GROUP_FETCH_OFFSETS: Final = _method(
    "GroupService/FetchOffsets",
    Kind.UNARY,
    group.FetchOffsetsRequest,
    group.FetchOffsetsResponse,
)
GROUP_LIST: Final = _method(
    "GroupService/ListGroups",
    Kind.UNARY,
    group.ListGroupsRequest,
    group.ListGroupsResponse,
)
GROUP_DESCRIBE: Final = _method(
    "GroupService/DescribeGroups",
    Kind.UNARY,
    group.DescribeGroupsRequest,
    group.DescribeGroupsResponse,
)
GROUP_DELETE: Final = _method(
    "GroupService/DeleteGroups",
    Kind.UNARY,
    group.DeleteGroupsRequest,
    group.DeleteGroupsResponse,
)
GROUP_DELETE_OFFSETS: Final = _method(
    "GroupService/DeleteOffsets",
    Kind.UNARY,
    group.DeleteOffsetsRequest,
    group.DeleteOffsetsResponse,
)

ALL_METHODS: Final[tuple[Method[Any, Any], ...]] = (
    BROKER_PRODUCE,
    BROKER_FETCH,
    BROKER_LIST_OFFSETS,
    BROKER_WATCH_METADATA,
    BROKER_DELETE_RECORDS,
    BROKER_DESCRIBE_REPLICAS,
    BROKER_DESCRIBE_STRAYS,
    BROKER_DESCRIBE_DELETIONS,
    BROKER_DIAGNOSE,
    BROKER_ALLOCATE_PRODUCER_ID,
    CONTROL_HEALTH,
    CONTROL_LEADER_AND_ISR,
    CONTROL_STOP_REPLICA,
    CONTROL_UPDATE_METADATA,
    CONTROL_UPDATE_SETTINGS,
    CONTROL_READ_RECOVERY_FACTS,
    CONTROLLER_CREATE_TOPIC,
    CONTROLLER_DELETE_TOPIC,
    CONTROLLER_INIT_PRODUCER,
    CONTROLLER_CONTROLLED_SHUTDOWN,
    CONTROLLER_FENCE_BROKER,
    CONTROLLER_EXPLAIN,
    CONTROLLER_ALTER_CONFIG,
    CONTROLLER_DESCRIBE_CONFIGS,
    CONTROLLER_ADD_PARTITIONS,
    CONTROLLER_ELECT_LEADERS,
    CONTROLLER_CORDON_BROKER,
    CONTROLLER_DESCRIBE_BROKERS,
    CONTROLLER_REASSIGN,
    CONTROLLER_CANCEL_REASSIGNMENTS,
    CONTROLLER_LIST_REASSIGNMENTS,
    GROUP_JOIN,
    GROUP_SYNC,
    GROUP_HEARTBEAT,
    GROUP_LEAVE,
    GROUP_COMMIT_OFFSETS,
    GROUP_STREAM_COMMITS,
    GROUP_FETCH_OFFSETS,
    GROUP_LIST,
    GROUP_DESCRIBE,
    GROUP_DELETE,
    GROUP_DELETE_OFFSETS,
)
