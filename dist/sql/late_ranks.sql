-- Ranks that come late: how far behind the first rank each rank launches the same collective.
-- Runs on DuckDB and on Spark, for every level with ops (flow, steps).
--
--   job, communicator, rank, host  a rank
--   collectives            collectives that at least two ranks of the communicator were seen to launch, this one among them
--   last                   of them, those that this rank launched last, of equal ones all count
--   mean_behind_us         launch after the first rank's, mean, in microseconds
--   max_behind_us          longest
--   hosts                  hosts of the communicator's ranks: if there is more than one, their clocks are compared, and a rank is "late"
--                          by as much as its host's clock is ahead, less what messages told of that (`clock_ahead_ns` of `host`).
--
-- A collective has the same number (seq) on all ranks, sends and receives (odd numbers) have not, and are left out. So are numbers that
-- are counted from the beginning of a part (seqLocal).

WITH launches AS (
    SELECT job, communicator, seq, rank, host, MIN(wall_ns) AS at_ns
    FROM op
    WHERE seq % 2 = 0 AND coll NOT IN ('Send', 'Recv') AND wall_ns IS NOT NULL AND COALESCE(seqLocal, false) = false
        -- A replay has the number of the op that was captured.
        AND graphLaunch IS NULL
    GROUP BY job, communicator, seq, rank, host
),
compared AS (
    SELECT
        job,
        communicator,
        rank,
        host,
        at_ns - MIN(at_ns) OVER (PARTITION BY job, communicator, seq) AS behind_ns,
        MAX(at_ns) OVER (PARTITION BY job, communicator, seq) - at_ns AS ahead_ns,
        COUNT(*) OVER (PARTITION BY job, communicator, seq) AS ranks
    FROM launches
),
host_counts AS (
    SELECT job, communicator, COUNT(DISTINCT host) AS hosts FROM launches GROUP BY job, communicator
)
SELECT
    compared.job,
    compared.communicator,
    compared.rank,
    compared.host,
    CAST(COUNT(*) AS BIGINT) AS collectives,
    CAST(SUM(CASE WHEN ahead_ns = 0 THEN 1 ELSE 0 END) AS BIGINT) AS last,
    CAST(SUM(behind_ns) AS DOUBLE) / 1000 / COUNT(*) AS mean_behind_us,
    CAST(MAX(behind_ns) AS DOUBLE) / 1000 AS max_behind_us,
    CAST(MAX(hosts) AS BIGINT) AS hosts
FROM compared
JOIN host_counts ON host_counts.job = compared.job AND host_counts.communicator = compared.communicator
WHERE ranks > 1
GROUP BY compared.job, compared.communicator, compared.rank, compared.host
ORDER BY compared.job, compared.communicator, mean_behind_us DESC, compared.rank, compared.host;
