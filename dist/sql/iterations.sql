-- Iteration time by rank: how long an iteration of the job takes, and how late the rank launches in it.
-- Runs on DuckDB and on Spark, for every level with ops (flow, steps), after views.sql, which says how iterations are inferred.
--
--   job, host, pid         a process
--   communicator, rank     the communicator of the collective that begins an iteration, and the process's rank in it
--   coll, dtype, count     that collective
--   iterations             complete ones: from one begin to the next
--   mean_ms, p50_ms, max_ms   time of an iteration, by the host's own clock
--   late_mean_ms           launch after the first rank's, mean over its collectives; null: nothing to compare

SELECT
    job,
    host,
    pid,
    communicator,
    rank,
    coll,
    dtype,
    count,
    CAST(COUNT(*) AS BIGINT) AS iterations,
    CAST(SUM(iteration_ns) AS DOUBLE) / 1000000 / COUNT(*) AS mean_ms,
    PERCENTILE_CONT(0.5) WITHIN GROUP (ORDER BY iteration_ns) / 1000000 AS p50_ms,
    CAST(MAX(iteration_ns) AS DOUBLE) / 1000000 AS max_ms,
    CASE WHEN SUM(collectives) > 0 THEN SUM(late_mean_ns * collectives) / SUM(collectives) / 1000000 END AS late_mean_ms
FROM iteration
GROUP BY job, host, pid, communicator, rank, coll, dtype, count
ORDER BY job, communicator, rank, host, pid;
