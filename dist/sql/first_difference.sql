-- First difference between ranks: for each communicator the first collective that is not the same on all ranks, or that a rank lacks.
-- Runs on DuckDB and on Spark, for every level with ops (flow, steps). No row: the ranks agree as far as they were recorded.
--
--   job, communicator, seq         the collective
--   difference             `call`: the ranks run another function, type, reduction, root or size,
--                          `missing`: a rank lacks it that has earlier and later ones (its records may have been lost: table host)
--   rank, host             each rank that has it, or lacks it (`missing`: host is null)
--   coll, dtype, redOp, root, count   what this rank runs
--   ranks_alike            ranks that run the same as this one: the smallest group is where to look
--
-- A rank that ends earlier is no difference here: recordings end at different moments. `ncclflow check` looks at that, too, and at sends
-- and receives.

WITH ops AS (
    SELECT DISTINCT job, communicator, seq, rank, host, coll, dtype, redOp, root, count
    FROM op
    WHERE seq % 2 = 0 AND coll NOT IN ('Send', 'Recv') AND COALESCE(seqLocal, false) = false
        -- A replay has the number of the op that was captured.
        AND graphLaunch IS NULL
),
signed AS (
    SELECT
        ops.*,
        CONCAT_WS(
            ' ',
            COALESCE(coll, '?'),
            COALESCE(dtype, '?'),
            COALESCE(redOp, '?'),
            CAST(root AS VARCHAR(20)),
            COALESCE(CAST(count AS VARCHAR(20)), '?')
        ) AS what
    FROM ops
),
spans AS (
    SELECT job, communicator, rank, MIN(seq) AS first_seq, MAX(seq) AS last_seq FROM ops GROUP BY job, communicator, rank
),
numbers AS (
    SELECT job, communicator, seq, COUNT(DISTINCT what) AS calls FROM signed GROUP BY job, communicator, seq
),
lacking AS (
    SELECT numbers.job, numbers.communicator, numbers.seq, spans.rank
    FROM numbers
    JOIN spans
        ON spans.job = numbers.job AND spans.communicator = numbers.communicator
        AND spans.first_seq < numbers.seq AND spans.last_seq > numbers.seq
    LEFT JOIN ops
        ON ops.job = numbers.job AND ops.communicator = numbers.communicator AND ops.seq = numbers.seq AND ops.rank = spans.rank
    WHERE ops.rank IS NULL
),
differences AS (
    SELECT job, communicator, seq FROM numbers WHERE calls > 1
    UNION
    SELECT job, communicator, seq FROM lacking
),
firsts AS (
    SELECT job, communicator, MIN(seq) AS seq FROM differences GROUP BY job, communicator
)
SELECT
    signed.job,
    signed.communicator,
    signed.seq,
    CASE WHEN numbers.calls > 1 THEN 'call' ELSE 'missing' END AS difference,
    signed.rank,
    signed.host,
    signed.coll,
    signed.dtype,
    signed.redOp,
    signed.root,
    signed.count,
    CAST(COUNT(*) OVER (PARTITION BY signed.job, signed.communicator, signed.seq, signed.what) AS BIGINT) AS ranks_alike
FROM signed
JOIN firsts ON firsts.job = signed.job AND firsts.communicator = signed.communicator AND firsts.seq = signed.seq
JOIN numbers ON numbers.job = signed.job AND numbers.communicator = signed.communicator AND numbers.seq = signed.seq
UNION ALL
SELECT
    lacking.job,
    lacking.communicator,
    lacking.seq,
    'missing' AS difference,
    lacking.rank,
    CAST(NULL AS VARCHAR(255)) AS host,
    CAST(NULL AS VARCHAR(255)) AS coll,
    CAST(NULL AS VARCHAR(255)) AS dtype,
    CAST(NULL AS VARCHAR(255)) AS redOp,
    CAST(NULL AS BIGINT) AS root,
    CAST(NULL AS BIGINT) AS count,
    CAST(COUNT(*) OVER (PARTITION BY lacking.job, lacking.communicator, lacking.seq) AS BIGINT) AS ranks_alike
FROM lacking
JOIN firsts ON firsts.job = lacking.job AND firsts.communicator = lacking.communicator AND firsts.seq = lacking.seq
ORDER BY job, communicator, seq, rank, host;
