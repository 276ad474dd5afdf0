"""Rows of the table of seams for clients of message brokers."""

from __future__ import annotations

from typing import Final

from spanreplay.seams.row import Seam

_OF_AIO_PIKA: Final = ("exchange", "queue", "channel", "connection")
"""Modules of aio-pika that the seam patches, each also in its robust form."""

BROKERS: Final[tuple[Seam, ...]] = (
    Seam(
        "confluent-kafka",
        "confluent-kafka",
        (
            "confluent_kafka.cimpl",
            "confluent_kafka.admin",
            "confluent_kafka.aio._AIOConsumer",
            "confluent_kafka.aio.producer._AIOProducer",
            "confluent_kafka.aio.producer._buffer_timeout_manager",
        ),
        "spanreplay.seams.machine.brokers.kafka.confluent",
        "messages that the agent's code gives to a producer, reports of their delivery, messages that a consumer "
        "takes, commits, transactions and requests of the admin client; in a replay no object of librdkafka is made",
        kind="`tool`",
        effect="`irreversible` for messages, commits and transactions, else `read`",
        versions=">=2.3",
        omits="share consumers, which make a run incomplete; looks that find nothing are no calls",
    ),
    Seam(
        "aiokafka",
        "aiokafka",
        (
            "aiokafka.producer.producer",
            "aiokafka.producer.message_accumulator",
            "aiokafka.consumer.consumer",
            "aiokafka.admin.client",
            "aiokafka.client",
        ),
        "spanreplay.seams.machine.brokers.kafka.aiokafka_client",
        "messages that the agent's code sends, their delivery, messages that it takes, commits, transactions and "
        "requests of the admin client; in a replay no broker is asked",
        kind="`tool`",
        effect="`irreversible` for messages, commits and transactions, else `read`",
        versions=">=0.8",
        omits="requests to the client below a producer or consumer, which make a run incomplete",
    ),
    Seam(
        "kafka-python",
        "kafka-python",
        (
            "kafka.producer.sender",
            "kafka.producer.kafka",
            "kafka.consumer.group",
            "kafka.coordinator.base",
            "kafka.coordinator.heartbeat",
            "kafka.net.selector",
            "kafka.admin.client",
        ),
        "spanreplay.seams.machine.brokers.kafka.kafka_python",
        "messages that the agent's code sends, their futures and callbacks, messages that it takes, commits, "
        "transactions and requests of the admin client; in a replay no broker is asked",
        kind="`tool`",
        effect="`irreversible` for messages, commits and transactions, else `read`",
        versions=">=2.0.2",
        omits="listeners of partitions since version 3, and callbacks of `commit_async`: they make a run incomplete",
    ),
    Seam(
        "aio-pika",
        "aio-pika",
        (
            "aiormq.channel",
            "aiormq.connection",
            "aio_pika.tools",
            "aio_pika.message",
            "aio_pika.transaction",
            *(f"aio_pika.{kind}{name}" for name in _OF_AIO_PIKA for kind in ("", "robust_")),
        ),
        "spanreplay.seams.machine.brokers.aio_pika_client.seam",
        "messages that the agent's code publishes to RabbitMQ, takes, gets delivered and acknowledges; queues, "
        "exchanges and bindings that it declares; in a replay no broker is asked",
        kind="`tool`",
        effect="`write`, `irreversible` for purging and deleting, `read` for connecting and deliveries",
        lanes="deliveries are in a lane of their consumer",
        versions=">=9.4",
        omits="connecting again, heartbeats and what robust connections restore; closing; aiormq used directly",
    ),
    Seam(
        "pika",
        "pika",
        ("pika.compat", "pika.connection", "pika.adapters.base_connection", "pika.adapters.blocking_connection"),
        "spanreplay.seams.machine.brokers.pika_client.seam",
        "messages that the agent's code publishes to RabbitMQ, takes, gets delivered and acknowledges with a "
        "`BlockingConnection`; queues, exchanges and bindings that it declares; in a replay no broker is asked",
        kind="`tool`",
        effect="`write`, `irreversible` for purging and deleting, `read` for connecting and waiting",
        versions=">=1.2",
        omits="heartbeats and logins; pika's other adapters (asyncio, Tornado, Twisted, gevent, `SelectConnection`)",
    ),
    Seam(
        "nats-py",
        "nats-py",
        ("nats.nuid", "nats.aio.subscription", "nats.aio.client", "nats.js.client"),
        "spanreplay.seams.machine.brokers.nats_client.seam",
        "messages that the agent's code publishes to NATS, requests and their answers, messages that it fetches or "
        "gets delivered, also through JetStream; in a replay no server is asked",
        kind="`tool`",
        effect="`write` for publishing and requests, else `read`",
        lanes="deliveries are in a lane of their subscription",
        versions=">=2.2",
        omits="connecting again, pings, closing",
    ),
    Seam(
        "kombu",
        "kombu",
        ("kombu.connection", "kombu.messaging", "kombu.simple", "kombu.transport.virtual.base"),
        "spanreplay.seams.machine.brokers.kombu_client.seam",
        "messages that the agent's code publishes, takes, gets delivered and acknowledges with kombu itself, on "
        "RabbitMQ, Redis or another transport; queues and exchanges that it declares; in a replay no broker is asked",
        kind="`tool`",
        effect="`write`, `irreversible` for purging and deleting, `read` for waiting",
        versions=">=5.3",
        omits="what Celery and other workers do with kombu for their own queue; connections, which are a call only "
        "where they fail; messages of the transport `memory`, which stay in the process",
    ),
)
