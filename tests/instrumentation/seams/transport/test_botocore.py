"""The botocore seam with a fake AWS: recorded, the server stopped, replayed in a second process."""

from __future__ import annotations

from collections.abc import Callable

import botocore.httpsession

from spanreplay.model.call import Recording
from spanreplay.seams.transport import botocore as _botocore
from support.replaying import Workplace
from support.transports import assert_patches
from support.web_server import WebServer

RoundTrip = Callable[[str], Recording]
SEAMS = ((_botocore.install, botocore.httpsession),)

PREAMBLE = """
import boto3, botocore, os
from botocore.config import Config
config = Config(retries={"total_max_attempts": 2}, connect_timeout=3, read_timeout=3)
def client(name, url=os.environ["URL"]):
    return boto3.client(name, endpoint_url=url, region_name="eu-west-1", config=config,
        aws_access_key_id="AKIAIOSFODNN7EXAMPLE", aws_secret_access_key="wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY")
"""
EVERYTHING = (
    PREAMBLE
    + """
model = client("bedrock-runtime")
ask = {"modelId": "m", "messages": [{"role": "user", "content": [{"text": "hi"}]}]}
answer = model.converse(**ask)
print(answer["output"], answer["usage"], answer["ResponseMetadata"]["HTTPStatusCode"])
stream = model.converse_stream(**ask)
for event in stream["stream"]:
    print(event)
stream = model.converse_stream(**ask)
for event in stream["stream"]:
    print(event)
    break
stream["stream"].close()
s3 = client("s3")
got = s3.get_object(Bucket="b", Key="k")
print(got["ContentLength"], got["Body"].read(10), got["Body"].read())
print([line for line in s3.get_object(Bucket="b", Key="k")["Body"].iter_lines()])
s3.put_object(Bucket="b", Key="k", Body=b"hello")
try:
    s3.get_object(Bucket="b", Key="missing")
except s3.exceptions.NoSuchKey as exc:
    print(type(exc), exc)
try:
    client("s3", os.environ["NOBODY"]).list_buckets()
except botocore.exceptions.EndpointConnectionError as exc:
    print(type(exc), exc)
"""
)


def test_s26_boto3_replays_byte_for_byte_without_the_endpoint(round_trip: RoundTrip) -> None:
    """Answers, event streams, object bodies, service errors and connection errors come back with the server stopped."""
    recording = round_trip(EVERYTHING)
    ends = [c.response.rpartition('"end":"')[2].split('"')[0] for c in recording.calls]
    assert ends[:4] == ["complete", "complete", "closed", "complete"]
    assert "AKIAIOSFODNN7EXAMPLE" not in str(recording)


def test_s28_changed_boto3_call_stops_the_replay(web: WebServer, workplace: Workplace) -> None:
    """Another body is a changed call, and the endpoint is not asked."""
    source = PREAMBLE + 'client("s3").put_object(Bucket="b", Key="k", Body=os.environ["N"].encode())\n'
    agent = workplace.write("agent.py", source)
    workplace.record(agent, N="1")
    asked = len(web.requests)
    replayed = workplace.replay(agent, N="2")
    assert replayed.status == 3
    assert [kind for kind, _ in replayed.causes()] == ["changed_call"]
    assert len(web.requests) == asked


def test_botocore_uninstall_restores_the_original() -> None:
    """Each target is patched, and is the same object again afterwards."""
    assert_patches(SEAMS, (botocore.httpsession.URLLib3Session, "send"))
