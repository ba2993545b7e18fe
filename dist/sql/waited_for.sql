-- Who is waited for: the rank that launches last, and the rank whose data comes late.
-- Runs on DuckDB and on Spark, for every level with ops (flow, steps), after views.sql.
--
--   job, communicator, rank   a rank; there are also ranks that were not recorded and were waited for
--   collectives            collectives of the rank that others were seen to launch, too
--   alone                  of them, those that this rank launched last and alone
--   alone_mean_us          for how long all other ranks had launched before, mean over all of its collectives: what it costs at most
--   messages               messages from this rank of which the receiver's wait is known (--level steps); null: none
--   data_mean_us           that wait, mean: for the sender and the network
--
-- A rank that others wait for has more of one or of the other than its peers. A job that never waits for its GPUs launches ahead of
-- them: then launches say little. Between hosts, their clocks are compared. `ncclflow check` knows more: counters of GPUs, and the
-- error of clocks.

WITH launched AS (
    SELECT
        job,
        communicator,
        rank,
        CAST(COUNT(*) AS BIGINT) AS collectives,
        CAST(SUM(CASE WHEN alone_ns > 0 THEN 1 ELSE 0 END) AS BIGINT) AS alone,
        CAST(SUM(alone_ns) AS DOUBLE) / 1000 / COUNT(*) AS alone_mean_us
    FROM launch
    WHERE ranks > 1
    GROUP BY job, communicator, rank
),
sent AS (
    SELECT
        job,
        communicator,
        peer AS rank,
        CAST(COUNT(*) AS BIGINT) AS messages,
        CAST(SUM(wait_network_ns) AS DOUBLE) / 1000 / COUNT(*) AS data_mean_us
    FROM message
    WHERE op = 'RECV' AND wait_network_ns IS NOT NULL
    GROUP BY job, communicator, peer
)
SELECT
    COALESCE(launched.job, sent.job) AS job,
    COALESCE(launched.communicator, sent.communicator) AS communicator,
    COALESCE(launched.rank, sent.rank) AS rank,
    launched.collectives,
    launched.alone,
    launched.alone_mean_us,
    sent.messages,
    sent.data_mean_us
FROM launched
FULL OUTER JOIN sent
    ON sent.job = launched.job AND sent.communicator = launched.communicator AND sent.rank = launched.rank
ORDER BY job, communicator, alone_mean_us DESC, data_mean_us DESC, rank;
