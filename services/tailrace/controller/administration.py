"""What administrators want changed: settings, partitions, cordons. Pure, as all decisions.

Each decision is what is missing for things to be as they were asked for: asked a second time, it is
empty. So a request whose outcome is not known is simply decided again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from tailrace.config import ClientConfig, live_configs
from tailrace.controller.capacity import placed
from tailrace.controller.changes import is_controller
from tailrace.controller.facts import (
    ConfigKind,
    ConfigRequested,
    CordonRequested,
    Decision,
    Facts,
    PartitionsRequested,
    Transaction,
)
from tailrace.controller.topics import PARTITIONS_MAX, TopicRules, check_config
from tailrace.errors import InvalidConfig, InvalidTopic, UnknownBroker, UnknownTopic, no_topic
from tailrace.meta.image import ClusterImage, StoredConfig, StoredTopic
from tailrace.meta.keys import (
    CLIENT_ID_LENGTH_MAX,
    DEFAULT_CONFIG,
    ConfigRecord,
    Cordon,
    SettingsChange,
    broker_config_key,
    client_config_key,
    cordon_key,
    deletion_key,
    encode,
    place_of,
    topic_key,
)
from tailrace.meta.store import Delete, ModifiedAt, Operation, Put
from tailrace.model import BrokerId

# That a topic remembers, for `explain`.
SETTINGS_CHANGES_MAX: Final = 10


def change_config(
    image: ClusterImage, event: ConfigRequested, facts: Facts, *, now_ms: int
) -> Decision:
    """Settings of a topic, a broker or a client; InvalidConfig when they cannot be."""
    if event.kind is ConfigKind.TOPIC:
        return _change_topic(image, event, facts, now_ms)
    stored = _stored_config(image, event.kind, event.name)
    old = {} if stored is None else stored.record.settings
    new = _merged(old, event)
    if event.kind is ConfigKind.BROKER:
        live_configs(new)
        key = broker_config_key(event.name)
    else:
        ClientConfig.from_settings(new)
        key = client_config_key(event.name)
    if new == old:
        return Decision(config=new)
    operation: Operation = Put(key, encode(ConfigRecord(settings=new))) if new else Delete(key)
    transaction = Transaction(
        what=f"settings of {event.kind.value} {event.name}",
        guards=(is_controller(facts.term), ModifiedAt(key, stored.revision if stored else 0)),
        operations=(operation,),
    )
    return Decision(transactions=(transaction,), config=new)


def add_partitions(image: ClusterImage, event: PartitionsRequested, facts: Facts) -> Decision:
    """More partitions for a topic; the placement goes on where it stopped counting."""
    topic = existing_topic(image, event.name)
    old = topic.record.assignment
    if event.partitions == len(old):
        return Decision(record=topic.record)
    if not len(old) < event.partitions <= PARTITIONS_MAX:
        raise InvalidTopic(
            f"topic {event.name!r} has {len(old)} partitions and can have up to {PARTITIONS_MAX}, "
            f"never fewer than it has: {event.partitions} cannot be"
        )
    new = placed(
        image,
        facts,
        partitions=event.partitions - len(old),
        replication_factor=len(old[0]),
        first=len(old),
    )
    record = replace(topic.record, assignment={**old, **new.assignment})
    transaction = Transaction(
        what=f"add {len(new.assignment)} partitions to topic {event.name}",
        guards=(
            is_controller(facts.term),
            ModifiedAt(topic_key(event.name), topic.revision),
            ModifiedAt(deletion_key(event.name), 0),
        ),
        operations=(Put(topic_key(event.name), encode(record)),),
    )
    return Decision(transactions=(transaction,), record=record, warnings=new.warnings)


def synced_transactions(image: ClusterImage, facts: Facts) -> tuple[Transaction, ...]:
    """Topics of which all who count have on disk what they had when `flush=ack` was asked for."""
    return tuple(
        Transaction(
            what=f"all replicas of topic {name} have synced what they had",
            guards=(
                is_controller(facts.term),
                ModifiedAt(topic_key(name), image.topics[name].revision),
            ),
            operations=(
                Put(topic_key(name), encode(replace(image.topics[name].record, syncing=False))),
            ),
        )
        for name in facts.synced
        if name in image.topics
        and image.topics[name].record.syncing
        and name not in image.deletions
    )


def cordon(image: ClusterImage, event: CordonRequested, facts: Facts, *, now_ms: int) -> Decision:
    """Give a broker nothing new, or end that. One that is away can be cordoned too."""
    stored = image.cordons.get(event.broker_id)
    if event.cordon is (stored is not None):
        return Decision()
    if event.cordon and event.broker_id not in known_brokers(image):
        raise UnknownBroker(f"there is no broker {event.broker_id}")
    key = cordon_key(event.broker_id)
    record = Cordon(reason=event.reason, since_ms=now_ms)
    transaction = Transaction(
        what=f"{'cordon' if event.cordon else 'uncordon'} broker {event.broker_id}",
        guards=(is_controller(facts.term), ModifiedAt(key, stored.revision if stored else 0)),
        operations=(Put(key, encode(record)) if event.cordon else Delete(key),),
    )
    return Decision(transactions=(transaction,))


def known_brokers(image: ClusterImage) -> list[BrokerId]:
    """Those that are registered, hold replicas or are cordoned."""
    found = {*image.brokers, *image.cordons}
    for _, replicas in image.partitions():
        found.update(replicas)
    return sorted(found)


def existing_topic(image: ClusterImage, name: str) -> StoredTopic:
    """UnknownTopic when there is none, or not for long."""
    topic = image.topics.get(name)
    if topic is None or name in image.deletions:
        if topic is None:
            raise no_topic([name], image.topics)
        raise UnknownTopic(f"it is being deleted, the topic {name!r}")
    return topic


def _change_topic(
    image: ClusterImage, event: ConfigRequested, facts: Facts, now_ms: int
) -> Decision:
    topic = existing_topic(image, event.name)
    new = _merged(topic.record.config, event)
    smallest = min(len(replicas) for replicas in topic.record.assignment.values())
    check_config(new, replication_factor=smallest, defaults=event.log_defaults)
    if new == topic.record.config:
        return Decision(config=new, record=topic.record)
    syncs_first = TopicRules.of(new, replicas=smallest).syncs_first
    was_so = TopicRules.of(topic.record.config, replicas=smallest).syncs_first
    syncing = syncs_first and (topic.record.syncing or not was_so)
    change = SettingsChange(
        decided_ms=now_ms,
        set=dict(sorted(event.changed.items())),
        unset=tuple(sorted(event.unset)),
        controller_id=facts.term.controller_id,
    )
    changes = (change, *topic.record.changes)[:SETTINGS_CHANGES_MAX]
    record = replace(topic.record, config=new, syncing=syncing, changes=changes)
    transaction = Transaction(
        what=f"settings of topic {event.name}",
        guards=(
            is_controller(facts.term),
            ModifiedAt(topic_key(event.name), topic.revision),
            ModifiedAt(deletion_key(event.name), 0),
        ),
        operations=(Put(topic_key(event.name), encode(record)),),
    )
    return Decision(transactions=(transaction,), config=new, record=record)


def _stored_config(image: ClusterImage, kind: ConfigKind, name: str) -> StoredConfig | None:
    if kind is ConfigKind.BROKER:
        if place_of(broker_config_key(name)) is None:
            raise InvalidConfig(
                f"{name!r} is neither the number of a broker nor {DEFAULT_CONFIG!r}"
            )
        return image.broker_configs.get(name)
    if not name or len(name) > CLIENT_ID_LENGTH_MAX or not name.isprintable():
        raise InvalidConfig(
            f"a client id has 1 to {CLIENT_ID_LENGTH_MAX} printable characters, not {name[:50]!r}"
        )
    return image.client_configs.get(name)


def _merged(old: Mapping[str, str], event: ConfigRequested) -> dict[str, str]:
    both = [name for name in event.unset if name in event.changed]
    if both:
        raise InvalidConfig(f"{both[0]!r} cannot be set and unset at the same time")
    kept = {name: old[name] for name in old if name not in event.unset}
    return dict(sorted({**kept, **event.changed}.items()))
