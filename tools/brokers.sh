#!/usr/bin/env bash
# Gets RabbitMQ and NATS for the tests of message brokers where they are missing and can be had; never fails.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ -x /usr/lib/rabbitmq/bin/rabbitmq-server ]] && command -v nats-server >/dev/null 2>&1 && exit 0
tools/apt.sh rabbitmq-server nats-server && exit 0
printf 'no RabbitMQ or NATS here and no right to install them: the tests of aio-pika, pika and nats-py will fail\n' >&2
