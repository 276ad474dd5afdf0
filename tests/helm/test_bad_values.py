"""Helm's messages for values that the control plane's chart must refuse."""

from __future__ import annotations

import pytest

from support.helm import refuse

CHART = "spanreplay"

BAD_VALUES = {
    "a key that does not exist": (["bogus=1"], "Additional property bogus is not allowed"),
    "a key of a part that does not exist": (["collector.replica=1"], "Additional property replica is not allowed"),
    "a word for a number": (["collector.replicas=\"two\""], "collector.replicas: Invalid type. Expected: integer"),
    "no pod": (["collector.replicas=0"], "collector.replicas: Must be greater than or equal to 1"),
    "an unknown store": (["clickhouse.mode=\"embedded\""], '"external", "operator", "demo"'),
    "an unknown operator": (["clickhouse.operator.kind=\"other\""], '"official", "altinity"'),
    "an unknown Phoenix": (["phoenix.mode=\"yes\""], '"disabled", "bundled", "external"'),
    "a digest that is none": (["collector.image.digest=\"abc\""], "collector.image.digest: Does not match"),
    "a size without unit": (["clickhouse.size=\"10\""], "clickhouse.size: Does not match"),
    "a database name with a dash": (["clickhouse.database=\"my-db\""], "clickhouse.database: Does not match"),
    "a cluster that is no name": (
        ["clickhouse.external.cluster=\"a b\""],
        "clickhouse.external.cluster: Does not match pattern",
    ),
    "a port out of range": (["clickhouse.external.port=70000"], "clickhouse.external.port: Must be less than"),
    "resources that Kubernetes lacks": (["collector.resources.limit={}"], "Additional property limit is not allowed"),
    "a memory limit that is none": (["collector.resources.limits.memory=\"1 GB\""], "Does not match pattern"),
    "a log larger than its volume of MiB": (["collector.log.size=\"1024Mi\""], "must be below collector.log.size"),
    "a log larger than its volume of TiB": (
        ["collector.log.size=\"1Ti\"", "collector.log.maxMiB=1048576"], "must be below collector.log.size (1Ti)"),
    "a user with a blank": (["clickhouse.auth.username=\"my user\""], "clickhouse.auth.username: Does not match"),
    "a link without scheme": (["phoenix.publicUrl=\"phoenix.example.com\""], "phoenix.publicUrl: Does not match"),
    "an address without scheme": (["phoenix.external.url=\"h:6006\""], "phoenix.external.url: Does not match"),
    "a word for a budget": (
        ["collector.podDisruptionBudget.maxUnavailable=\"abc\""], "maxUnavailable: Does not match"),
    "a budget below nothing": (["replay.podDisruptionBudget.maxUnavailable=-1"], "Must be greater than or equal to 0"),
    "a URL for a host": (["gateway.collectorHost=\"http://x y\""], "gateway.collectorHost: Does not match"),
    "a host with a blank": (["collector.ingress.host=\"a b\""], "collector.ingress.host: Does not match"),
    "a class with a blank": (["global.storageClass=\"my class\""], "global.storageClass: Does not match"),
    "a name with capitals": (["fullnameOverride=\"Mine\""], "fullnameOverride: Does not match"),
    "a registry with a scheme": (["global.imageRegistry=\"https://r\""], "global.imageRegistry: Does not match"),
    "a key of a secret with a slash": (["auth.key=\"a/b\""], "auth.key: Does not match"),
    "a label that no node carries": (["replay.nodeSelector.gpu=\"NVIDIA H200\""], "replay.nodeSelector.gpu: Does not"),
    "a number with two points": (["collector.resources.limits.memory=\"1.2.3Gi\""], "Does not match pattern"),
    "a variable without name": (["collector.extraEnv=[{\"value\": \"1\"}]"], "name is required"),
    "a label that is no string": (["global.labels.a=1"], "global.labels.a: Invalid type. Expected: string"),
    "an argument that is a number": (["replay.extraArgs=[1]"], "replay.extraArgs.0: Invalid type. Expected: string"),
    "the tag latest": (["collector.image.tag=\"latest\""], "collector.image.tag"),
    "an external store without host": (["clickhouse.mode=\"external\""], "clickhouse.external.host is required"),
    "an external store without password": (
        ["clickhouse.mode=\"external\"", "clickhouse.external.host=\"h\""],
        "clickhouse.auth.existingSecret is required",
    ),
    "an operator that the cluster lacks": (["clickhouse.mode=\"operator\""], "install the ClickHouse operator"),
    "an external Phoenix without address": (["phoenix.mode=\"external\""], "phoenix.external.url is required"),
    "Postgres without address": (
        ["phoenix.mode=\"bundled\"", "phoenix.storage.type=\"postgres\""],
        "phoenix.storage.dsnSecret is required",
    ),
    "a client CA without certificate": (["tls.clientCa=true"], "tls.clientCa needs tls.existingSecret"),
    "fewer pods at most than at least": (
        ["replay.autoscaling.enabled=true", "replay.autoscaling.minReplicas=9"],
        "replay.autoscaling.minReplicas (9) is larger than maxReplicas (8)",
    ),
    "a log larger than its volume": (["collector.log.size=\"1Gi\""], "must be below collector.log.size (1Gi)"),
    "routes without a gateway": (["gateway.enabled=true"], "gateway.parentRefs is required"),
    "an Ingress to no collector": (
        ["collector.enabled=false", "collector.ingress.enabled=true"],
        "collector.ingress.enabled needs collector.enabled",
    ),
    "an Ingress to no Phoenix": (["phoenix.ingress.enabled=true"], "phoenix.ingress.enabled needs phoenix.mode"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_VALUES)
def test_h2_bad_values_are_refused_readably(case: str) -> None:
    """Each bad value is refused before anything is sent, and the message names the key."""
    sets, message = BAD_VALUES[case]
    assert message in refuse(CHART, *sets)
