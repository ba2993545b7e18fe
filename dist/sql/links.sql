-- Bytes and waits by link: what went over each link of each rank, and what its messages waited for.
-- Runs on DuckDB and on Spark. Waits and measured bytes need recordings of --level steps.
--
--   job, communicator, rank, op, peer, transport   a link: `rank` sends to `peer`, or receives from it (op: SEND, RECV)
--   host                                   of the rank
--   messages, measured                     planned messages, of them, those that were measured to their end
--   bytes_exact, bytes_capacity            planned bytes: exact ones, and upper bounds where only the slot's size is known
--   bytes_measured                         bytes whose size was seen on its way
--   busy_ms                                from when a message could begin to its end, summed over the messages
--   gpu_ms                                 of this, waiting for the own GPU: to fill (SEND) or to empty (RECV) the slot
--   peer_ms                                waiting for the receiver to offer a buffer (SEND)
--   gpu_or_peer_ms                         one of the two (NCCL up to 2.26 does not tell them apart)
--   network_ms                             waiting for the network (SEND), or for the sender and the network (RECV)
--   flush_ms                               from arrival until it was handed to the GPU (RECV)
--   flush_or_gpu_ms                        that, and waiting for the GPU to empty the slot (RECV, where they are not told apart)

SELECT
    job,
    communicator,
    rank,
    op,
    peer,
    transport,
    host,
    CAST(SUM(messages) AS BIGINT) AS messages,
    CAST(SUM(messages_measured) AS BIGINT) AS measured,
    CAST(SUM(bytes_exact) AS BIGINT) AS bytes_exact,
    CAST(SUM(bytes_capacity) AS BIGINT) AS bytes_capacity,
    CAST(SUM(bytes_measured) AS BIGINT) AS bytes_measured,
    CAST(SUM(busy_sum_ns) AS DOUBLE) / 1000000 AS busy_ms,
    CAST(SUM(wait_gpu_ready_ns + wait_gpu_consume_ns) AS DOUBLE) / 1000000 AS gpu_ms,
    CAST(SUM(wait_peer_buffer_ns) AS DOUBLE) / 1000000 AS peer_ms,
    CAST(SUM(wait_gpu_ready_or_peer_buffer_ns) AS DOUBLE) / 1000000 AS gpu_or_peer_ms,
    CAST(SUM(wait_network_ns) AS DOUBLE) / 1000000 AS network_ms,
    CAST(SUM(wait_flush_ns) AS DOUBLE) / 1000000 AS flush_ms,
    CAST(SUM(wait_flush_or_gpu_consume_ns) AS DOUBLE) / 1000000 AS flush_or_gpu_ms
FROM link_1s
GROUP BY job, communicator, rank, op, peer, transport, host
ORDER BY job, communicator, rank, op, peer, transport, host;
