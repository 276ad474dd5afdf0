-- Runs that stay when others of their day are removed: somebody pinned them, or they failed.
CREATE TABLE IF NOT EXISTS pins (
    tenant LowCardinality(String),
    run_id FixedString(16),
    is_pinned UInt8 COMMENT '0: somebody unpinned it, so a failure is not pinned again',
    reason String,
    version UInt64 COMMENT 'time of the change in ns'
) ENGINE = ReplacingMergeTree(version)
ORDER BY (tenant, run_id);

-- Runs that somebody erased: records of theirs that arrive later are dropped.
CREATE TABLE IF NOT EXISTS erased (
    tenant LowCardinality(String),
    run_id FixedString(16),
    erased_at DateTime64(3, 'UTC')
) ENGINE = ReplacingMergeTree
ORDER BY (tenant, run_id);
