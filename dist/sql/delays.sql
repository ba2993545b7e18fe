-- Delay matrix: how long each rank waited for messages from each peer. A row is a cell of the matrix.
-- Runs on DuckDB and on Spark. Needs recordings of --level steps, of jobs whose messages go over the network.
--
--   job, communicator              communicator
--   rank, peer             the rank that received, and the rank that sent: row and column of the matrix
--   messages               received messages of which the wait is known
--   mean_us, max_us        wait for the sender and the network: from when the receive was posted (or, where that was not measured, its
--                          slot was free) until the data was there, in microseconds
--   worst                  1: of all peers of this rank the one with the longest mean, ties give the smallest peer
--
-- A receiver's own clock measures all of it: no clock of one host is compared with another's.

WITH cells AS (
    SELECT
        job,
        communicator,
        rank,
        peer,
        CAST(COUNT(*) AS BIGINT) AS messages,
        CAST(SUM(wait_network_ns) AS DOUBLE) / 1000 / COUNT(*) AS mean_us,
        CAST(MAX(wait_network_ns) AS DOUBLE) / 1000 AS max_us
    FROM message
    WHERE op = 'RECV' AND wait_network_ns IS NOT NULL
    GROUP BY job, communicator, rank, peer
)
SELECT
    job,
    communicator,
    rank,
    peer,
    messages,
    mean_us,
    max_us,
    CAST(
        CASE WHEN ROW_NUMBER() OVER (PARTITION BY job, communicator, rank ORDER BY mean_us DESC, peer) = 1 THEN 1 ELSE 0 END AS INT
    ) AS worst
FROM cells
ORDER BY job, communicator, rank, peer;
