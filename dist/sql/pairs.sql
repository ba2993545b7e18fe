-- Bytes between each pair of ranks, of sends and receives and of what is made of them: all-to-alls, gathers, scatters.
-- Runs on DuckDB and on Spark. Planned bytes are known from NCCL 2.23 on, measured ones with recordings of --level steps.
--
--   job, communicator      communicator
--   rank, op, peer         `rank` sends to `peer`, or receives from it (op: SEND, RECV), by what `rank` saw
--   called                 the function that was called: Send, Recv, AlltoAll …
--   calls                  sends, or receives: an all-to-all has one of each for each peer
--   bytes_planned          bytes of these calls
--   bytes_measured         bytes whose size was seen on its way, over the network
--   messages_measured      messages of which that is known

WITH calls AS (
    SELECT
        job,
        communicator,
        rank,
        root AS peer,
        pattern AS op,
        COALESCE(collApi, coll) AS called,
        seq,
        -- A replay of a CUDA graph has the number of the op that was captured.
        graphLaunch,
        -- A call has a row for each of its channels.
        MAX(bytes) AS bytes
    FROM op
    WHERE pattern IN ('SEND', 'RECV')
    GROUP BY job, communicator, rank, root, pattern, COALESCE(collApi, coll), seq, graphLaunch
),
moved AS (
    SELECT
        job,
        communicator,
        rank,
        peer,
        op,
        seq,
        SUM(bytes_measured) AS bytes,
        COUNT(bytes_measured) AS messages
    FROM message
    WHERE pattern IN ('SEND', 'RECV')
    GROUP BY job, communicator, rank, peer, op, seq
)
SELECT
    calls.job,
    calls.communicator,
    calls.rank,
    calls.op,
    calls.peer,
    calls.called,
    CAST(COUNT(*) AS BIGINT) AS calls,
    CAST(SUM(calls.bytes) AS BIGINT) AS bytes_planned,
    CAST(SUM(moved.bytes) AS BIGINT) AS bytes_measured,
    CAST(COALESCE(SUM(moved.messages), 0) AS BIGINT) AS messages_measured
FROM calls
LEFT JOIN moved
    ON calls.job = moved.job
    AND calls.communicator = moved.communicator
    AND calls.rank = moved.rank
    AND calls.peer = moved.peer
    AND calls.op = moved.op
    AND calls.seq = moved.seq
    AND calls.graphLaunch IS NULL
GROUP BY calls.job, calls.communicator, calls.rank, calls.op, calls.peer, calls.called
ORDER BY calls.job, calls.communicator, calls.rank, calls.op, calls.peer, calls.called;
