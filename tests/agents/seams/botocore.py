"""A client of AWS."""

import os

import boto3
from botocore.config import Config


def ask(url):
    client = boto3.client(
        "lambda",
        endpoint_url=url,
        region_name="eu-west-1",
        aws_access_key_id="AKIAIOSFODNN7EXAMPLE",
        aws_secret_access_key="an example",
        config=Config(retries={"total_max_attempts": 1}, connect_timeout=5),
    )
    return client.get_account_settings()["ResponseMetadata"]["HTTPStatusCode"]


def use():
    return ask(os.environ["URL"] + "/json")


def fail():
    return ask(os.environ["NOBODY"] + "/json")
