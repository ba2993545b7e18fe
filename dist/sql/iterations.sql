-- Iteration time by rank: how long an iteration of the job takes, from one occurrence of a collective to the next.
-- Runs on DuckDB and on Spark, for every level with ops (flow, steps).
--
-- Nothing in a recording says where an iteration begins: it is inferred. A collective is known by communicator, function, type and
-- size. Of those that a process runs three times or more, most come once in each iteration: the number of occurrences that the most of
-- them share (of equally many the smallest number) is taken for the number of iterations, and the one of them that was seen first for the
-- beginning of an iteration. So it is wrong where most collectives come several times in an iteration, always as often.
--
--   job, host, pid         a process
--   communicator, rank             the communicator of that collective, and the process's rank in it
--   coll, dtype, count     that collective
--   iterations             complete ones: from one occurrence to the next
--   mean_ms, p50_ms, max_ms   time of an iteration, by the host's own clock

WITH launches AS (
    SELECT job, host, pid, communicator, rank, seq, coll, dtype, count, MIN(ts_ns) AS at_ns
    FROM op
    WHERE seq % 2 = 0 AND coll NOT IN ('Send', 'Recv')
    GROUP BY job, host, pid, communicator, rank, seq, coll, dtype, count
),
kinds AS (
    SELECT job, host, pid, communicator, rank, coll, dtype, count, COUNT(*) AS times, MIN(at_ns) AS first_ns
    FROM launches
    GROUP BY job, host, pid, communicator, rank, coll, dtype, count
    HAVING COUNT(*) >= 3
),
shared AS (
    SELECT kinds.*, COUNT(*) OVER (PARTITION BY job, host, pid, times) AS alike FROM kinds
),
choices AS (
    SELECT
        shared.*,
        ROW_NUMBER() OVER (
            PARTITION BY job, host, pid ORDER BY alike DESC, times, first_ns, communicator, rank, coll, dtype, count
        ) AS place
    FROM shared
),
begins AS (
    SELECT
        launches.*,
        LEAD(launches.at_ns) OVER (PARTITION BY launches.job, launches.host, launches.pid ORDER BY launches.at_ns, launches.seq)
            - launches.at_ns AS iteration_ns
    FROM launches
    JOIN choices
        ON choices.job = launches.job AND choices.host = launches.host AND choices.pid = launches.pid
        AND choices.communicator = launches.communicator AND choices.rank = launches.rank AND choices.coll = launches.coll
        AND COALESCE(choices.dtype, '') = COALESCE(launches.dtype, '')
        AND COALESCE(choices.count, -1) = COALESCE(launches.count, -1)
        AND choices.place = 1
)
SELECT
    job,
    host,
    pid,
    communicator,
    rank,
    coll,
    dtype,
    count,
    CAST(COUNT(iteration_ns) AS BIGINT) AS iterations,
    CAST(SUM(iteration_ns) AS DOUBLE) / 1000000 / COUNT(iteration_ns) AS mean_ms,
    PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY iteration_ns) / 1000000 AS p50_ms,
    CAST(MAX(iteration_ns) AS DOUBLE) / 1000000 AS max_ms
FROM begins
GROUP BY job, host, pid, communicator, rank, coll, dtype, count
ORDER BY job, communicator, rank, host, pid;
