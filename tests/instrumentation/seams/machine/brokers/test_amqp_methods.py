"""What consumers of RabbitMQ's queues take messages from."""

from __future__ import annotations

from spanreplay.seams.machine.brokers.amqp_methods import make_source


def test_p3_queues_that_the_broker_names_have_one_name_and_are_told_apart() -> None:
    """Runs of a worker are found by one name, however often it was started."""
    first, second = object(), object()
    one, two = make_source("amq.gen-C2Mwo9yoTJ5Mie", first), make_source("amq.gen-ME7Z7mtnUh2Y8", second)
    assert (one.name, two.name) == ("amqp amq.gen", "amqp amq.gen")
    assert one != two
    assert make_source("orders", first).name == "amqp orders"
