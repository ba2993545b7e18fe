-- Views over the tables, for DuckDB and Spark: launches and iterations. They come after views.duckdb.sql or views.spark.sql.
--
--   D .read …/sql/views.sql
--   spark-sql> source …/sql/views.sql;

-- A launch of a collective by a rank, beside those of the other ranks that were seen to launch it.
--
--   job, host, pid, communicator, rank, seq, coll, dtype, count   rank and collective
--   at_ns, wall_ns         when it launched: by its host's clock, and as Unix time
--   ranks                  ranks that were seen to launch it; null, and so are the two below: they cannot be compared, as their clock is not
--                          known or their numbers are counted from the beginning of a part (seqLocal)
--   late_ns                launch after the first rank's. Between hosts, their clocks are compared
--   alone_ns               of the rank that launched last: for how long all others had launched before; of the others 0
CREATE OR REPLACE TEMPORARY VIEW launch AS
WITH launches AS (
    SELECT
        job, host, pid, communicator, rank, seq, coll, dtype, count,
        MIN(ts_ns) AS at_ns,
        MIN(wall_ns) AS wall_ns,
        MAX(CASE WHEN wall_ns IS NULL OR COALESCE(seqLocal, false) THEN 1 ELSE 0 END) AS apart
    FROM op
    -- A replay has the number of the op that was captured.
    WHERE seq % 2 = 0 AND coll NOT IN ('Send', 'Recv') AND graphLaunch IS NULL
    GROUP BY job, host, pid, communicator, rank, seq, coll, dtype, count
)
SELECT
    job, host, pid, communicator, rank, seq, coll, dtype, count, at_ns, wall_ns,
    CASE WHEN apart = 0 THEN COUNT(*) OVER (PARTITION BY job, communicator, seq, apart) END AS ranks,
    CASE WHEN apart = 0 THEN wall_ns - MIN(wall_ns) OVER (PARTITION BY job, communicator, seq, apart) END AS late_ns,
    CASE
        WHEN apart = 1 THEN NULL
        WHEN ROW_NUMBER() OVER (PARTITION BY job, communicator, seq, apart ORDER BY wall_ns DESC, rank DESC, host DESC) > 1 THEN 0
        ELSE COALESCE(wall_ns - LAG(wall_ns) OVER (PARTITION BY job, communicator, seq, apart ORDER BY wall_ns, rank, host), 0)
    END AS alone_ns
FROM launches;

-- An iteration of a process.
--
-- Nothing in a recording says where an iteration begins: it is inferred. A collective is known by communicator, function, type and
-- size. Of those that a process runs three times or more, most come as often in each iteration: the number of occurrences that the most
-- of them share (of equally many the smallest number) is taken, and the one of them that was seen first begins an iteration. If it comes
-- several times in one, as gradients of one size do, pauses tell: where most of eight runs or more between long pauses (twice the mean)
-- have the same number of occurrences, 2 to 64, an iteration has so many, and begins where most long pauses end.
--
--   job, host, pid         a process
--   communicator, rank     the communicator of that collective, and the process's rank in it
--   coll, dtype, count     that collective
--   iteration              number of the iteration among those of the process that were recorded, from 1 on
--   begun_ns, begun_wall_ns   its begin: by the host's clock, and as Unix time
--   iteration_ns           its length, by the host's clock
--   collectives            launches in it that are compared with those of other ranks
--   last                   of them, those that this rank launched last and alone
--   late_mean_ns, late_max_ns   of them, launch after the first rank's
--   alone_max_ns           longest time for which all other ranks had launched before
CREATE OR REPLACE TEMPORARY VIEW iteration AS
WITH kinds AS (
    SELECT job, host, pid, communicator, rank, coll, dtype, count, COUNT(*) AS times, MIN(at_ns) AS first_ns
    FROM launch
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
occurrences AS (
    SELECT
        launch.*,
        ROW_NUMBER() OVER (PARTITION BY launch.job, launch.host, launch.pid ORDER BY launch.at_ns, launch.seq) AS number,
        launch.at_ns - LAG(launch.at_ns) OVER (PARTITION BY launch.job, launch.host, launch.pid ORDER BY launch.at_ns, launch.seq)
            AS pause_ns
    FROM launch
    JOIN choices
        ON choices.job = launch.job AND choices.host = launch.host AND choices.pid = launch.pid
        AND choices.communicator = launch.communicator AND choices.rank = launch.rank AND choices.coll = launch.coll
        AND COALESCE(choices.dtype, '') = COALESCE(launch.dtype, '')
        AND COALESCE(choices.count, -1) = COALESCE(launch.count, -1)
        AND choices.place = 1
),
pauses AS (
    SELECT
        occurrences.*,
        CASE
            WHEN pause_ns > 2 * AVG(CAST(pause_ns AS DOUBLE)) OVER (PARTITION BY job, host, pid) THEN 1
            ELSE 0
        END AS is_long
    FROM occurrences
),
runs AS (
    SELECT job, host, pid, run, COUNT(*) AS length, MAX(run) OVER (PARTITION BY job, host, pid) AS last_run
    FROM (
        SELECT
            pauses.*,
            SUM(is_long) OVER (
                PARTITION BY job, host, pid ORDER BY number ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
            ) AS run
        FROM pauses
    ) AS of_runs
    GROUP BY job, host, pid, run
),
rhythms AS (
    SELECT
        job, host, pid, length,
        COUNT(*) AS alike,
        SUM(COUNT(*)) OVER (PARTITION BY job, host, pid) AS of_all,
        ROW_NUMBER() OVER (PARTITION BY job, host, pid ORDER BY COUNT(*) DESC, length) AS place
    FROM runs
    WHERE run > 0 AND run < last_run
    GROUP BY job, host, pid, length
),
several AS (
    SELECT job, host, pid, length FROM rhythms
    WHERE place = 1 AND length BETWEEN 2 AND 64 AND of_all >= 8 AND alike * 2 > of_all
),
placed AS (
    SELECT
        pauses.*,
        COALESCE(several.length, 1) AS per_iteration,
        SUM(is_long) OVER (
            PARTITION BY pauses.job, pauses.host, pauses.pid, number % COALESCE(several.length, 1)
        ) AS long_pauses
    FROM pauses
    LEFT JOIN several ON several.job = pauses.job AND several.host = pauses.host AND several.pid = pauses.pid
),
firsts AS (
    SELECT
        job, host, pid, communicator, rank, coll, dtype, count, seq,
        CASE
            WHEN number % per_iteration = FIRST_VALUE(number % per_iteration) OVER (
                PARTITION BY job, host, pid ORDER BY long_pauses DESC, number % per_iteration
            ) THEN 1
            ELSE 0
        END AS is_begin
    FROM placed
),
begins AS (
    SELECT
        launch.*,
        choices.communicator AS begin_communicator,
        choices.rank AS begin_rank,
        choices.coll AS begin_coll,
        choices.dtype AS begin_dtype,
        choices.count AS begin_count,
        COALESCE(firsts.is_begin, 0) AS is_begin
    FROM launch
    JOIN choices
        ON choices.job = launch.job AND choices.host = launch.host AND choices.pid = launch.pid AND choices.place = 1
    LEFT JOIN firsts
        ON firsts.job = launch.job AND firsts.host = launch.host AND firsts.pid = launch.pid
        AND firsts.communicator = launch.communicator AND firsts.rank = launch.rank AND firsts.seq = launch.seq
        AND firsts.coll = launch.coll AND COALESCE(firsts.dtype, '') = COALESCE(launch.dtype, '')
        AND COALESCE(firsts.count, -1) = COALESCE(launch.count, -1)
),
numbered AS (
    SELECT
        begins.*,
        SUM(is_begin) OVER (
            PARTITION BY job, host, pid ORDER BY at_ns, is_begin DESC, communicator, rank, seq
            ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
        ) AS iteration
    FROM begins
),
iterations AS (
    SELECT
        job, host, pid, begin_communicator, begin_rank, begin_coll, begin_dtype, begin_count, iteration,
        MIN(at_ns) AS begun_ns,
        MIN(wall_ns) AS begun_wall_ns,
        SUM(CASE WHEN ranks > 1 THEN 1 ELSE 0 END) AS collectives,
        SUM(CASE WHEN ranks > 1 AND alone_ns > 0 THEN 1 ELSE 0 END) AS last,
        SUM(CASE WHEN ranks > 1 THEN late_ns END) AS late_sum_ns,
        MAX(CASE WHEN ranks > 1 THEN late_ns END) AS late_max_ns,
        MAX(CASE WHEN ranks > 1 THEN alone_ns END) AS alone_max_ns
    FROM numbered
    WHERE iteration > 0
    GROUP BY job, host, pid, begin_communicator, begin_rank, begin_coll, begin_dtype, begin_count, iteration
),
lengths AS (
    SELECT
        iterations.*,
        LEAD(begun_ns) OVER (PARTITION BY job, host, pid ORDER BY iteration) - begun_ns AS iteration_ns
    FROM iterations
)
SELECT
    job, host, pid,
    begin_communicator AS communicator,
    begin_rank AS rank,
    begin_coll AS coll,
    begin_dtype AS dtype,
    begin_count AS count,
    CAST(iteration AS BIGINT) AS iteration,
    begun_ns, begun_wall_ns, iteration_ns,
    CAST(collectives AS BIGINT) AS collectives,
    CAST(last AS BIGINT) AS last,
    CASE WHEN collectives > 0 THEN CAST(late_sum_ns AS DOUBLE) / collectives END AS late_mean_ns,
    late_max_ns, alone_max_ns
FROM lengths
WHERE iteration_ns IS NOT NULL;
