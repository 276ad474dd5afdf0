-- Every span, once, as bytes: `skeleton` with `parts` (rows of `blobs`) put back at `cuts` is the span's protobuf.
-- A span's final record has a higher version than its `open` one. run_id is a UUIDv7 as 16 bytes:
-- ClickHouse's own UUID type sorts by its second half, which would scatter the runs of a day.
CREATE TABLE IF NOT EXISTS spans (
    tenant LowCardinality(String),
    run_id FixedString(16),
    day Date COMMENT 'UTC day inside run_id; 1970-01-01 where run_id holds none',
    seq UInt32 COMMENT 'start order in the run; 4294967295 for spans of other instrumentors',
    trace_id FixedString(16) CODEC(ZSTD(1)),
    span_id FixedString(8) CODEC(ZSTD(1)),
    parent_span_id FixedString(8) CODEC(ZSTD(1)),
    version UInt64 CODEC(Delta(8), ZSTD(1)),
    name LowCardinality(String),
    kind LowCardinality(String),
    scope LowCardinality(String),
    service LowCardinality(String),
    status UInt8 COMMENT 'OTLP status code: 0 unset, 1 ok, 2 error',
    start_ns UInt64 CODEC(Delta(8), ZSTD(1)),
    end_ns UInt64 CODEC(Delta(8), ZSTD(1)),
    attributes Map(LowCardinality(String), String) CODEC(ZSTD(1)) COMMENT 'short scalar attributes of other instrumentors, for queries only',
    span_bytes UInt32 CODEC(T64, ZSTD(1)),
    resource FixedString(16) CODEC(ZSTD(1)) COMMENT 'blob: ResourceSpans without its scopes',
    scope_header FixedString(16) CODEC(ZSTD(1)) COMMENT 'blob: ScopeSpans without its spans',
    skeleton String CODEC(ZSTD(1)),
    cuts Array(UInt32) CODEC(ZSTD(1)),
    parts Array(FixedString(16)) CODEC(ZSTD(1)),
    INDEX i_trace trace_id TYPE bloom_filter(0.001) GRANULARITY 1,
    INDEX i_time start_ns TYPE minmax GRANULARITY 1
) ENGINE = ReplacingMergeTree(version)
PARTITION BY day
ORDER BY (tenant, run_id, seq, trace_id, span_id)
SETTINGS index_granularity = 1024, non_replicated_deduplication_window = 10000;

-- Parts of spans, addressed by blake2b-128 within (tenant, run): a message that fifty calls resend is stored once.
CREATE TABLE IF NOT EXISTS blobs (
    tenant LowCardinality(String),
    run_id FixedString(16),
    day Date,
    hash FixedString(16) CODEC(NONE),
    body String CODEC(ZSTD(1))
) ENGINE = ReplacingMergeTree
PARTITION BY day
ORDER BY (tenant, run_id, hash)
SETTINGS index_granularity = 128, index_granularity_bytes = 1048576, min_compress_block_size = 65536,
    max_compress_block_size = 262144, merge_max_block_size_bytes = 16777216,
    non_replicated_deduplication_window = 10000;

-- One narrow row for each boundary call and for each root span (kind `run`): what people search by.
CREATE TABLE IF NOT EXISTS boundaries (
    tenant LowCardinality(String),
    run_id FixedString(16),
    day Date,
    seq UInt32,
    trace_id FixedString(16) CODEC(ZSTD(1)),
    span_id FixedString(8) CODEC(ZSTD(1)),
    parent_span_id FixedString(8) CODEC(ZSTD(1)),
    version UInt64 CODEC(Delta(8), ZSTD(1)),
    kind LowCardinality(String),
    name LowCardinality(String),
    effect LowCardinality(String),
    lane LowCardinality(String),
    call_index UInt32,
    key String CODEC(ZSTD(1)),
    keyspec LowCardinality(String),
    call_id String CODEC(ZSTD(1)),
    outcome LowCardinality(String),
    end_seq Int32,
    parent_seq Int32,
    code LowCardinality(String),
    start_ns UInt64 CODEC(Delta(8), ZSTD(1)),
    end_ns UInt64 CODEC(Delta(8), ZSTD(1)),
    request_bytes UInt32 CODEC(T64, ZSTD(1)),
    response_bytes UInt32 CODEC(T64, ZSTD(1)),
    redactions UInt32,
    provider LowCardinality(String),
    model LowCardinality(String) COMMENT 'the model that was asked for',
    response_model LowCardinality(String) COMMENT 'the model that answered',
    fingerprint LowCardinality(String),
    finish_reason LowCardinality(String),
    system_prompt_hash LowCardinality(String),
    temperature Nullable(Float64),
    top_p Nullable(Float64),
    seed Nullable(Int64),
    max_tokens Nullable(Int64),
    is_stream UInt8,
    tokens_in UInt64 CODEC(T64, ZSTD(1)),
    tokens_out UInt64 CODEC(T64, ZSTD(1)),
    meta Map(LowCardinality(String), String) CODEC(ZSTD(1)),
    app LowCardinality(String),
    user_id String CODEC(ZSTD(1)),
    session_id String CODEC(ZSTD(1)),
    replay_of String CODEC(ZSTD(1)),
    git_sha LowCardinality(String),
    env String CODEC(ZSTD(1)) COMMENT 'JSON, root rows only',
    manifest String CODEC(ZSTD(1)) COMMENT 'JSON, final root rows only',
    expected_calls Int64 COMMENT 'calls that the manifest states; -1 where it states none',
    has_holes UInt8 COMMENT 'the manifest counts dropped, truncated or unserializable calls',
    INDEX i_key key TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX i_call_id call_id TYPE bloom_filter(0.01) GRANULARITY 1,
    INDEX i_time start_ns TYPE minmax GRANULARITY 1
) ENGINE = ReplacingMergeTree(version)
PARTITION BY day
ORDER BY (tenant, run_id, seq, trace_id, span_id)
SETTINGS index_granularity = 512, non_replicated_deduplication_window = 10000;

-- One row for each run, merged from its boundaries. Every aggregate is idempotent (max, min, sets by span id):
-- an open record, its final one, a batch sent twice and a repeated load leave the same state as one.
CREATE TABLE IF NOT EXISTS runs (
    tenant LowCardinality(String),
    run_id FixedString(16),
    day Date,
    start_ns SimpleAggregateFunction(min, UInt64),
    end_ns SimpleAggregateFunction(max, UInt64),
    app SimpleAggregateFunction(max, String),
    user_id SimpleAggregateFunction(max, String),
    session_id SimpleAggregateFunction(max, String),
    replay_of SimpleAggregateFunction(max, String),
    git_sha SimpleAggregateFunction(max, String),
    has_manifest SimpleAggregateFunction(max, UInt8),
    has_holes SimpleAggregateFunction(max, UInt8),
    is_error SimpleAggregateFunction(max, UInt8) COMMENT 'the root span ended in an error',
    expected_calls SimpleAggregateFunction(max, Int64),
    tools SimpleAggregateFunction(groupUniqArrayArray, Array(String)),
    calls AggregateFunction(uniqExactIf, UInt64, UInt8),
    finished_calls AggregateFunction(uniqExactIf, UInt64, UInt8),
    llm_calls AggregateFunction(uniqExactIf, UInt64, UInt8),
    errors AggregateFunction(uniqExactIf, UInt64, UInt8),
    tokens_in SimpleAggregateFunction(maxMap, Tuple(Array(UInt64), Array(UInt64))),
    tokens_out SimpleAggregateFunction(maxMap, Tuple(Array(UInt64), Array(UInt64)))
) ENGINE = AggregatingMergeTree
PARTITION BY day
ORDER BY (tenant, run_id)
SETTINGS index_granularity = 1024, non_replicated_deduplication_window = 10000;

CREATE MATERIALIZED VIEW IF NOT EXISTS runs_from_boundaries TO runs AS
SELECT
    b.tenant AS tenant,
    b.run_id AS run_id,
    b.day AS day,
    min(b.start_ns) AS start_ns,
    max(b.end_ns) AS end_ns,
    max(b.app) AS app,
    max(b.user_id) AS user_id,
    max(b.session_id) AS session_id,
    max(b.replay_of) AS replay_of,
    max(b.git_sha) AS git_sha,
    max(toUInt8(b.kind = 'run' AND b.manifest != '')) AS has_manifest,
    max(b.has_holes) AS has_holes,
    max(toUInt8(b.kind = 'run' AND b.outcome = 'error')) AS is_error,
    max(b.expected_calls) AS expected_calls,
    groupUniqArrayArray(if(b.kind IN ('tool', 'mcp'), [toString(b.name)], [])) AS tools,
    uniqExactIfState(reinterpretAsUInt64(b.span_id), toUInt8(b.kind != 'run')) AS calls,
    uniqExactIfState(reinterpretAsUInt64(b.span_id), toUInt8(b.kind != 'run' AND b.outcome != 'open')) AS finished_calls,
    uniqExactIfState(reinterpretAsUInt64(b.span_id), toUInt8(b.kind = 'llm')) AS llm_calls,
    uniqExactIfState(reinterpretAsUInt64(b.span_id), toUInt8(b.kind != 'run' AND b.outcome = 'error')) AS errors,
    maxMap(if(b.tokens_in > 0, [reinterpretAsUInt64(b.span_id)], []), if(b.tokens_in > 0, [b.tokens_in], [])) AS tokens_in,
    maxMap(if(b.tokens_out > 0, [reinterpretAsUInt64(b.span_id)], []), if(b.tokens_out > 0, [b.tokens_out], [])) AS tokens_out
FROM boundaries AS b
GROUP BY b.tenant, b.run_id, b.day;

-- For people who write SQL: every call with what its run's root span says, run id as text.
CREATE VIEW IF NOT EXISTS calls AS
SELECT
    lower(hex(b.run_id)) AS run,
    b.* EXCEPT (app, user_id, session_id, replay_of, git_sha, env, manifest, expected_calls, has_holes),
    r.app AS app,
    r.user_id AS user_id,
    r.session_id AS session_id,
    r.replay_of AS replay_of,
    r.git_sha AS git_sha
FROM boundaries AS b FINAL
LEFT JOIN (
    SELECT
        tenant,
        run_id,
        max(app) AS app,
        max(user_id) AS user_id,
        max(session_id) AS session_id,
        max(replay_of) AS replay_of,
        max(git_sha) AS git_sha
    FROM runs
    GROUP BY tenant, run_id
) AS r ON b.tenant = r.tenant AND b.run_id = r.run_id
WHERE b.kind != 'run';
