"""Programs whose own loop takes four messages from a broker, asks a model for each, and sends its answer on."""

from __future__ import annotations

from typing import Final

from support.groq_asking import GROQ_ASKING

HEAD: Final = f"""
import asyncio, json, os, time
{GROQ_ASKING}
WARM = ask("warm up")
"""
PUBLISH: Final = """
import json, os
from confluent_kafka import Producer
producer = Producer({"bootstrap.servers": os.environ["KAFKA"]})
for number in range(4):
    value = json.dumps({"number": number, "text": f"question-{number} of user-{number}"})
    producer.produce("orders", value, partition=0, headers={"x-user-id": f"user-{number}"})
producer.flush()
"""
PUBLISH_AMQP: Final = """
import json, os, pika
channel = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"] + "%2F")).channel()
channel.queue_declare("orders")
for number in range(4):
    value = json.dumps({"number": number, "text": f"question-{number} of user-{number}"})
    headers = pika.BasicProperties(headers={"x-user-id": f"user-{number}"})
    channel.basic_publish("", "orders", value, headers)
"""
AIOKAFKA: Final = """
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
async def handle(message, producer):
    order = json.loads(message.value)
    answer, again = await asyncio.gather(ask_async(order["text"]), ask_async(order["text"] + " again"))
    await producer.send_and_wait("answers", json.dumps([order["number"], answer, again, time.time()]).encode())
    print("answered", order["number"])

async def main():
    servers = os.environ["KAFKA"]
    given = dict(group_id="g", auto_offset_reset="earliest", enable_auto_commit=False)
    async with AIOKafkaProducer(bootstrap_servers=servers) as producer:
        async with AIOKafkaConsumer("orders", bootstrap_servers=servers, **given) as consumer:
            left = 4
LOOP
    print("all done")

asyncio.run(main())
"""
KAFKA: Final = {
    "confluent-kafka": """
from confluent_kafka import Consumer, Producer
settings = {"bootstrap.servers": os.environ["KAFKA"]}
producer = Producer(settings)
consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest", "enable.auto.commit": False})
consumer.subscribe(["orders"], on_assign=lambda consumer, places: print("assigned", ask("to places")[:6]))
left = 4
while left:
    message = consumer.poll(0.2)
    if message is None:
        continue
    left -= 1
    order = json.loads(message.value())
    producer.produce("answers", json.dumps([order["number"], ask(order["text"]), SEED, WARM, time.time()]))
    producer.flush()
    consumer.commit(message)
    print("answered", order["number"])
consumer.close()
print("all done")
""",
    "confluent-kafka-pool": """
from concurrent.futures import ThreadPoolExecutor
from confluent_kafka import Consumer, Producer
settings = {"bootstrap.servers": os.environ["KAFKA"]}
producer = Producer(settings)

def handle(message):
    order = json.loads(message.value())
    producer.produce("answers", json.dumps([order["number"], ask(order["text"]), SEED, WARM, time.time()]))
    producer.flush()
    print("answered", order["number"])

consumer = Consumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
consumer.subscribe(["orders"])
left = 4
with ThreadPoolExecutor(4) as pool:
    while left:
        for message in consumer.consume(1, timeout=0.2):
            left -= 1
            pool.submit(handle, message)
consumer.close()
print("all done")
""",
    "confluent-kafka-async": """
import asyncio
from confluent_kafka import Producer
from confluent_kafka.aio import AIOConsumer
settings = {"bootstrap.servers": os.environ["KAFKA"]}

async def main():
    producer = Producer(settings)
    consumer = AIOConsumer({**settings, "group.id": "g", "auto.offset.reset": "earliest"})
    await consumer.subscribe(["orders"])
    left = 4
    while left:
        message = await consumer.poll(0.2)
        if message is None:
            continue
        left -= 1
        order = json.loads(message.value())
        answer = await asyncio.to_thread(ask, order["text"])
        producer.produce("answers", json.dumps([order["number"], answer, SEED, WARM, time.time()]))
        producer.flush()
        print("answered", order["number"])
    await consumer.close()

asyncio.run(main())
print("all done")
""",
    "kafka-python": """
from kafka import KafkaConsumer, KafkaProducer
servers = os.environ["KAFKA"]
producer = KafkaProducer(bootstrap_servers=servers)
consumer = KafkaConsumer("orders", bootstrap_servers=servers, group_id="g", auto_offset_reset="earliest")
left = 4
for message in consumer:
    order = json.loads(message.value)
    sent = json.dumps([order["number"], ask(order["text"]), SEED, WARM, time.time()]).encode()
    producer.send("answers", sent).get(timeout=60)
    print("answered", order["number"])
    left -= 1
    if not left:
        break
consumer.close()
print("all done")
""",
    "aiokafka": AIOKAFKA.replace(
        "LOOP",
        """
            async for message in consumer:
                await handle(message, producer)
                await consumer.commit()
                left -= 1
                if not left:
                    break
""",
    ),
    "aiokafka-timeout": AIOKAFKA.replace(
        "LOOP",
        """
            while left:
                try:
                    message = await asyncio.wait_for(consumer.getone(), 0.3)
                except asyncio.TimeoutError:
                    continue
                await handle(message, producer)
                left -= 1
""",
    ),
    "aiokafka-tasks": AIOKAFKA.replace(
        "LOOP",
        """
            started = []
            while left:
                for messages in (await consumer.getmany(timeout_ms=200, max_records=1)).values():
                    for message in messages:
                        started.append(asyncio.create_task(handle(message, producer)))
                        left -= 1
            await asyncio.wait(started)
""",
    ),
}
AIO_PIKA: Final = """
import aio_pika
async def handle(message, channel):
    order = json.loads(message.body)
    answer, again = await asyncio.gather(ask_async(order["text"]), ask_async(order["text"] + " again"))
    body = json.dumps([order["number"], answer, again, time.time()]).encode()
    await channel.default_exchange.publish(aio_pika.Message(body), "answers")
    await message.ack()
    print("answered", order["number"])

async def main():
    connection = await aio_pika.connect_robust(os.environ["AMQP_URL"])
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=PREFETCH)
    queue = await channel.declare_queue("orders")
LOOP
    await connection.close()
    print("all done")

asyncio.run(main())
"""
PIKA: Final = """
import pika
connection = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"] + "%2F"))
channel = connection.channel()
channel.basic_qos(prefetch_count=3)
left = 4
def handle(channel, method, properties, body):
    global left
    order = json.loads(body)
    answer = ask(order["text"])
    channel.basic_publish("", "answers", json.dumps([order["number"], answer, SEED, WARM, time.time()]))
    channel.basic_ack(method.delivery_tag)
    print("answered", order["number"])
    left -= 1

LOOP
connection.close()
print("all done")
"""
KOMBU: Final = """
import socket
from kombu import Connection, Exchange, Queue
from kombu.mixins import ConsumerMixin
connection = Connection(os.environ["AMQP_URL"] + "/")
orders = Queue("orders", durable=False)
producer = connection.Producer(serializer="json")
left = 4
def handle(body, message):
    global left
    order = json.loads(body)
    answer = ask(order["text"])
    producer.publish([order["number"], answer, SEED, WARM, time.time()], routing_key="answers")
    message.ack()
    print("answered", order["number"])
    left -= 1

LOOP
connection.release()
print("all done")
"""
AMQP: Final = {
    "kombu-mixin": KOMBU.replace(
        "LOOP",
        """
class Worker(ConsumerMixin):
    def __init__(self, connection):
        self.connection = connection

    def get_consumers(self, Consumer, channel):
        return [Consumer([orders], on_message=lambda message: self.on(message))]

    def on(self, message):
        handle(message.body, message)
        self.should_stop = not left

Worker(connection).run()
""",
    ),
    "kombu-events": KOMBU.replace(
        "LOOP",
        """
with connection.Consumer(orders, on_message=lambda message: handle(message.body, message), prefetch_count=1):
    while left:
        try:
            connection.drain_events(timeout=0.2)
        except socket.timeout:
            pass
        producer.publish("beat", routing_key="beats")
""",
    ),
    "kombu-simple": KOMBU.replace(
        "LOOP",
        """
queue = connection.SimpleQueue(orders)
while left:
    try:
        message = queue.get(timeout=0.2)
    except queue.Empty:
        continue
    handle(message.body, message)
queue.close()
""",
    ),
    "pika-callback-pool": PIKA.replace(
        "LOOP",
        """
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(1)
def work(order):
    print("answered", order["number"], ask(order["text"]))

def on_message(channel, method, properties, body):
    global left
    order = json.loads(body)
    channel.basic_publish("", "answers", json.dumps([order["number"], "soon"]))
    pool.submit(work, order)
    channel.basic_ack(method.delivery_tag)
    left -= 1
    if not left:
        channel.stop_consuming()
channel.basic_consume("orders", on_message)
channel.start_consuming()
pool.shutdown()
""",
    ),
    "pika-get": PIKA.replace(
        "LOOP",
        """
while left:
    method, properties, body = channel.basic_get("orders")
    if method is None:
        time.sleep(0.1)
        continue
    handle(channel, method, properties, body)
""",
    ),
    "aio-pika": AIO_PIKA.replace("PREFETCH", "1").replace(
        "LOOP",
        """
    left = 4
    async with queue.iterator() as messages:
        async for message in messages:
            await handle(message, channel)
            left -= 1
            if not left:
                break
""",
    ),
    "aio-pika-callback": AIO_PIKA.replace("PREFETCH", "10").replace(
        "LOOP",
        """
    left, done = 4, asyncio.Event()
    async def on_message(message):
        nonlocal left
        await handle(message, channel)
        left -= 1
        if not left:
            done.set()
    tag = await queue.consume(on_message)
    await done.wait()
    await queue.cancel(tag)
""",
    ),
    "pika": PIKA.replace(
        "LOOP",
        """
for method, properties, body in channel.consume("orders", inactivity_timeout=0.2):
    if method is not None:
        handle(channel, method, properties, body)
        if not left:
            break
channel.cancel()
""",
    ),
    "pika-callback": PIKA.replace(
        "LOOP",
        """
def on_message(channel, method, properties, body):
    handle(channel, method, properties, body)
    if not left:
        channel.stop_consuming()
channel.basic_consume("orders", on_message)
channel.start_consuming()
""",
    ),
}
NATS_WORKER: Final = """
import nats
async def handle(message, nc):
    order = json.loads(message.data)
    answer, again = await asyncio.gather(ask_async(order["text"]), ask_async(order["text"] + " again"))
    await nc.publish("answers", json.dumps([order["number"], answer, again, time.time()]).encode())
    print("answered", order["number"])

async def main():
    nc = await nats.connect(os.environ["NATS_URL"])
    left = 4
LOOP
    await nc.close()
    print("all done")

asyncio.run(main())
"""
NATS: Final = {
    "callback": NATS_WORKER.replace(
        "LOOP",
        """
    done = asyncio.Event()
    async def on_message(message):
        nonlocal left
        await handle(message, nc)
        left -= 1
        if not left:
            done.set()
    sub = await nc.subscribe("orders", cb=on_message)
    await nc.publish("ready", b"")
    await done.wait()
    await sub.unsubscribe()
""",
    ),
    "one by one": NATS_WORKER.replace(
        "LOOP",
        """
    sub = await nc.subscribe("orders")
    await nc.publish("ready", b"")
    while left:
        try:
            message = await sub.next_msg(timeout=0.2)
        except nats.errors.TimeoutError:
            continue
        await handle(message, nc)
        left -= 1
    await sub.unsubscribe()
""",
    ),
    "iterator": NATS_WORKER.replace(
        "LOOP",
        """
    sub = await nc.subscribe("orders")
    await nc.publish("ready", b"")
    async for message in sub.messages:
        await handle(message, nc)
        left -= 1
        if not left:
            break
""",
    ),
    "fetch": NATS_WORKER.replace(
        "LOOP",
        """
    js = nc.jetstream()
    await js.add_stream(name="jobs", subjects=["orders"])
    pulled = await js.pull_subscribe("orders", "worker")
    await nc.publish("ready", b"")
    while left:
        try:
            messages = await pulled.fetch(1, timeout=0.5)
        except nats.errors.TimeoutError:
            continue
        for message in messages:
            await handle(message, nc)
            await message.ack()
            left -= 1
""",
    ),
}
PUBLISH_NATS: Final = """
import asyncio, json, os, sys, nats
async def main():
    nc = await nats.connect(os.environ["NATS_URL"])
    ready = await nc.subscribe("ready")
    await nc.flush()
    open("listens", "w").close()
    await ready.next_msg(timeout=120)
    for number in range(4):
        value = json.dumps({"number": number, "text": f"question-{number} of user-{number}"})
        await nc.publish("orders", value.encode(), headers={"x-user-id": f"user-{number}"})
    await nc.close()
asyncio.run(main())
"""
REDIS_HEAD: Final = """
from redis import Redis
queue = Redis(port=int(os.environ["REDIS"]))
def handle(raw):
    order = json.loads(raw)
    queue.rpush("answers", json.dumps([order["number"], ask(order["text"]), SEED, WARM, time.time()]))
    print("answered", order["number"])
"""
REDIS: Final = {
    "list": """
for _ in range(4):
    handle(queue.blpop("orders")[1])
    queue.incr("done")
print("all done")
""",
    "stream": """
left = 4
while left:
    for name, entries in queue.xreadgroup("g", "me", {"stream": ">"}, count=1, block=200):
        for entry, fields in entries:
            handle(fields[b"order"])
            queue.xack("stream", "g", entry)
            left -= 1
print("all done")
""",
    "subscription": """
heard = queue.pubsub()
heard.subscribe("news")
queue.set("subscribed", "1")
left = 4
for message in heard.listen():
    if message["type"] == "message":
        handle(message["data"])
        left -= 1
        if not left:
            break
print("all done")
""",
}
PUBLISH_REDIS: Final = """
import json, os
from redis import Redis
redis = Redis(port=int(os.environ["REDIS"]))
redis.xgroup_create("stream", "g", mkstream=True)
for number in range(4):
    order = json.dumps({"number": number, "text": f"question-{number} of user-{number}"})
    redis.rpush("orders", order)
    redis.xadd("stream", {"order": order})
"""
ANNOUNCE: Final = """
import json, os, time
from redis import Redis
redis = Redis(port=int(os.environ["REDIS"]))
while not redis.get("subscribed"):
    time.sleep(0.01)
for number in range(4):
    order = json.dumps({"number": number, "text": f"question-{number} of user-{number}"})
    redis.publish("news", order)
"""
SQS: Final = """
import boto3
client = boto3.client(
    "sqs", endpoint_url=os.environ["SQS"], region_name="eu-central-1", aws_access_key_id="k", aws_secret_access_key="s"
)
left = 4
while left:
    found = client.receive_message(QueueUrl=f"{os.environ['SQS']}/1/orders", WaitTimeSeconds=1)
    for message in found.get("Messages", []):
        order = json.loads(message["Body"])
        client.send_message(
            QueueUrl=f"{os.environ['SQS']}/1/answers",
            MessageBody=json.dumps([order["number"], ask(order["text"]), SEED, WARM, time.time()]),
        )
        client.delete_message(QueueUrl=f"{os.environ['SQS']}/1/orders", ReceiptHandle=message["ReceiptHandle"])
        print("answered", order["number"])
        left -= 1
print("all done")
"""
SQS_ASYNC: Final = """
from aiobotocore.session import get_session
keys = {"region_name": "eu-central-1", "aws_access_key_id": "k", "aws_secret_access_key": "s"}
orders, answers = (f"{os.environ['SQS']}/1/{name}" for name in ("orders", "answers"))

async def main():
    left = 4
    async with get_session().create_client("sqs", endpoint_url=os.environ["SQS"], **keys) as client:
        while left:
            found = await client.receive_message(QueueUrl=orders, WaitTimeSeconds=1, MaxNumberOfMessages=1)
            for message in found.get("Messages", []):
                order = json.loads(message["Body"])
                reply = await asyncio.to_thread(ask, order["text"])
                body = json.dumps([order["number"], reply, SEED, WARM, time.time()])
                await client.send_message(QueueUrl=answers, MessageBody=body)
                await client.delete_message(QueueUrl=orders, ReceiptHandle=message["ReceiptHandle"])
                print("answered", order["number"])
                left -= 1
    print("all done")

asyncio.run(main())
"""
PUBLISH_SQS: Final = """
import boto3, json, os
client = boto3.client(
    "sqs", endpoint_url=os.environ["SQS"], region_name="eu-central-1", aws_access_key_id="k", aws_secret_access_key="s"
)
for number in range(4):
    value = json.dumps({"number": number, "text": f"question-{number} of user-{number}"})
    told = {"x-user-id": {"StringValue": f"user-{number}", "DataType": "String"}}
    client.send_message(QueueUrl=f"{os.environ['SQS']}/1/orders", MessageBody=value, MessageAttributes=told)
"""
PUBLISHED: Final = {
    "KAFKA": PUBLISH,
    "AMQP_URL": PUBLISH_AMQP,
    "REDIS": PUBLISH_REDIS,
    "SQS": PUBLISH_SQS,
    "NATS_URL": "",
}
NAMES: Final = {"KAFKA": "kafka g", "SQS": "sqs orders"}
NOBODY: Final = {
    "KAFKA": "127.0.0.1:9",
    "AMQP_URL": "amqp://guest:guest@127.0.0.1:9/",
    "REDIS": "9",
    "NATS_URL": "nats://127.0.0.1:9",
}
