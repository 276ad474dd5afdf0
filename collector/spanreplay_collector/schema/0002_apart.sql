-- Records that came after the one that counts, with other content, or after the end of their run: not part of
-- any run, kept for whoever looks into where they came from.
CREATE TABLE IF NOT EXISTS spans_apart (
    tenant LowCardinality(String),
    run_id FixedString(16),
    day Date,
    seq UInt32,
    trace_id FixedString(16),
    span_id FixedString(8),
    parent_span_id FixedString(8),
    version UInt64,
    name LowCardinality(String),
    kind LowCardinality(String),
    scope LowCardinality(String),
    service LowCardinality(String),
    status UInt8,
    start_ns UInt64,
    end_ns UInt64,
    attributes Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    span_bytes UInt32,
    resource FixedString(16),
    scope_header FixedString(16),
    skeleton String CODEC(ZSTD(1)),
    cuts Array(UInt32),
    parts Array(FixedString(16)),
    content FixedString(16) COMMENT 'hash of the record: equal ones are one',
    reason LowCardinality(String) COMMENT 'other content, or after the end',
    arrived DateTime64(3, 'UTC') DEFAULT now64(3)
) ENGINE = ReplacingMergeTree
PARTITION BY day
ORDER BY (tenant, run_id, span_id, content)
SETTINGS non_replicated_deduplication_window = 10000;
