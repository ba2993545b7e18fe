//! Columns that tables of many hosts have besides those of lines.

use nccl_library::nccl::{Direction, Transport};

use super::named::named;

row! {
    /// Columns that the tables `op`, `message` and `call` have besides the keys of their lines.
    #[derive(Eq)]
    pub struct FleetColumns {
        /// The communicator: `commHash`, and a number if there are several of that hash and rank. `null`: a
        /// call that belongs to no communicator.
        "communicator": Identity, communicator: Option<String>;
        /// Unix time of the row's `ts_ns`; in `message`, of the op's `ts_ns`. `null`: the recording does not
        /// say when it began.
        "wall_ns": Derived "ns", wall_ns: Option<u64>;
        /// Unix time less CLOCK_MONOTONIC: `wall_ns` is `ts_ns` plus this offset, and any other moment of the
        /// row becomes Unix time in the same way. By the clock that `clock_against` of `host` names.
        "clock_offset_ns": Derived "ns", clock_offset_ns: Option<u64>;
    }
}

row! {
    /// Columns that a row of `message` has from its op.
    #[derive(Eq)]
    pub struct FleetMessage {
        /// `ts_ns` of the op's row.
        "ts_ns": Measured "ns", ts_ns: u64;
        /// `pid` of the op's row.
        "pid": Identity, pid: u32;
        /// Network device of this rank that carries it: an adapter (`mlx5_0`) or an interface (`eth0`), where it is known.
        "nic": Identity, nic: Option<String>;
    }
}

row! {
    /// A row of `comm`: a rank of a communicator in a recording.
    #[derive(Default, Eq)]
    pub struct FleetComm {
        /// The communicator, by the name that it has in the other tables.
        "communicator": Identity, communicator: String;
        /// `commHash` of the communicator.
        "commHash": Identity, comm_hash: String;
        /// This rank.
        "rank": Identity, rank: i32;
        /// Size of the communicator; `null`: no op or call told it.
        "nRanks": Identity, n_ranks: Option<i32>;
        /// Process ID of the rank, in ncclflow's PID namespace.
        "pid": Identity, pid: u32;
        /// Rows of the rank in `op`: ops times channels.
        "ops": Measured, ops: u64;
        /// Rows of the rank in `message`.
        "messages": Measured, messages: u64;
        /// Rows of the rank in `call`.
        "calls": Measured, calls: u64;
        /// Smallest `seq` of the rank's ops.
        "first_seq": Derived, first_seq: Option<u64>;
        /// Largest `seq` of the rank's ops.
        "last_seq": Derived, last_seq: Option<u64>;
        /// Smallest `ts_ns` of the rank's ops and calls, CLOCK_MONOTONIC of its host.
        "first_ns": Measured "ns", first_ns: u64;
        /// Largest `ts_ns` of the rank's ops and calls.
        "last_ns": Measured "ns", last_ns: u64;
        /// Unix time of `first_ns`.
        "first_wall_ns": Derived "ns", first_wall_ns: Option<u64>;
        /// Unix time of `last_ns`.
        "last_wall_ns": Derived "ns", last_wall_ns: Option<u64>;
    }
}

row! {
    /// A row of `host`: a recording (or a window of one), as its `session.json` describes it.
    #[derive(Eq)]
    pub struct FleetHost {
        /// Name of the recording: the names of its files in all tables begin with it.
        "recording": Identity, recording: String;
        /// Version of ncclflow that recorded.
        "ncclflow": Identity, ncclflow: Option<String>;
        /// Kernel release of the host, as `uname -r` prints it.
        "kernel": Identity, kernel: Option<String>;
        /// Level of the recording: `api` `flow` `steps`
        "level": Identity, level: Option<String>;
        /// State of the recording: `complete` `write_failed` `failed`; `recording`: it has no end, as it was
        /// killed, a part of ncclflow failed, its disk was full, or it still goes on.
        "state": Measured, state: Option<String>;
        /// Records of the recording that were read.
        "records": Measured, records: u64;
        /// Records that this export could not understand.
        "records_not_understood": Measured, records_not_understood: u64;
        /// Blocks of the recording that are damaged or of a newer kind, and were left out.
        "blocks_left_out": Measured, blocks_left_out: u64;
        /// Numbers beyond 2⁶³, in whose place there is `null`.
        "numbers_left_out": Measured, numbers_left_out: u64;
        /// Host by whose clock `wall_ns` are, as messages of all hosts of the export tell it; `null`: by that
        /// of its own host.
        "clock_against": Derived, clock_against: Option<String>;
        /// By how much its own host's clock is ahead of that, which is taken off; 0, where that is less than
        /// the error.
        "clock_ahead_ns": Derived "ns", clock_ahead_ns: Option<i64>;
        /// Error of that, in all of the recording.
        "clock_error_ns": Derived "ns", clock_error_ns: Option<u64>;
    }
}

named! {
    /// Moment that decides into which second a message falls.
    #[derive(PartialOrd, Ord, Hash)]
    SecondOf {
        /// `t_end_ns` of the message: measured.
        End = "end",
        /// `ts_ns` of the op: the message's end was not measured.
        Op = "op",
    }
}

row! {
    /// A row of `link_1s`: the traffic of a link of a rank in a second.
    #[derive(Eq)]
    pub struct LinkSecond {
        /// The communicator, by the name that it has in the other tables.
        "communicator": Identity, communicator: String;
        /// This rank.
        "rank": Identity, rank: i32;
        /// Peer of this rank on the link.
        "peer": Identity, peer: i32;
        /// NCCL channel.
        "channel": Identity, channel: u32;
        /// Direction: this rank sends (`SEND`), or receives (`RECV`).
        "op": Identity, op: Direction;
        /// Transport of the link: `NET` `P2P` `SHM` `COL` …
        "transport": Identity, transport: Transport;
        /// Network device of this rank that carries it: an adapter (`mlx5_0`) or an interface (`eth0`), where it is known.
        "nic": Identity, nic: Option<String>;
        /// Unix time in seconds; without a wall clock, seconds of CLOCK_MONOTONIC.
        "second": Derived "s", second: u64;
        /// Moment that falls into the second: `end`, the measured end of each message; `op`, the `ts_ns` of
        /// its op, for messages whose end was not measured.
        "second_of": Identity, second_of: SecondOf;
        /// Messages, measured or only planned.
        "messages": Derived, messages: u64;
        /// Messages that were measured to their end.
        "messages_measured": Measured, messages_measured: u64;
        /// `bytes` of the messages whose `bytes_kind` is `exact`.
        "bytes_exact": Derived "bytes", bytes_exact: u64;
        /// `bytes` of the messages whose `bytes_kind` is `capacity`: an upper bound.
        "bytes_capacity": Derived "bytes", bytes_capacity: u64;
        /// `bytes_measured` of the messages whose size was seen.
        "bytes_measured": Measured "bytes", bytes_measured: u64;
        /// Messages whose size was seen.
        "sizes_measured": Measured, sizes_measured: u64;
        /// Sum over messages of the time from when the message could begin to its end.
        "busy_sum_ns": Derived "ns", busy_sum_ns: u64;
        /// Longest of these times.
        "busy_max_ns": Derived "ns", busy_max_ns: u64;
        /// Messages of which both moments are known.
        "busy_messages": Derived, busy_messages: u64;
        /// Sum of `wait_gpu_ready_ns` of `message`; 0 as well if it is not known of any message.
        "wait_gpu_ready_ns": Derived "ns", wait_gpu_ready_ns: u64;
        /// Sum of `wait_peer_buffer_ns` of `message`; 0 as well if it is not known of any message.
        "wait_peer_buffer_ns": Derived "ns", wait_peer_buffer_ns: u64;
        /// Sum of `wait_gpu_ready_or_peer_buffer_ns` of `message`; 0 as well if it is not known of any
        /// message.
        "wait_gpu_ready_or_peer_buffer_ns": Derived "ns", wait_gpu_ready_or_peer_buffer_ns: u64;
        /// Sum of `wait_network_ns` of `message`; 0 as well if it is not known of any message.
        "wait_network_ns": Derived "ns", wait_network_ns: u64;
        /// Sum of `wait_flush_ns` of `message`; 0 as well if it is not known of any message.
        "wait_flush_ns": Derived "ns", wait_flush_ns: u64;
        /// Sum of `wait_gpu_consume_ns` of `message`; 0 as well if it is not known of any message.
        "wait_gpu_consume_ns": Derived "ns", wait_gpu_consume_ns: u64;
        /// Sum of `wait_flush_or_gpu_consume_ns` of `message`; 0 as well if it is not known of any message.
        "wait_flush_or_gpu_consume_ns": Derived "ns", wait_flush_or_gpu_consume_ns: u64;
        /// Messages of which `wait_gpu_ready_ns` is known.
        "waited_gpu_ready": Derived, waited_gpu_ready: u64;
        /// Messages of which `wait_peer_buffer_ns` is known.
        "waited_peer_buffer": Derived, waited_peer_buffer: u64;
        /// Messages of which `wait_gpu_ready_or_peer_buffer_ns` is known.
        "waited_gpu_ready_or_peer_buffer": Derived, waited_gpu_ready_or_peer_buffer: u64;
        /// Messages of which `wait_network_ns` is known.
        "waited_network": Derived, waited_network: u64;
        /// Messages of which `wait_flush_ns` is known.
        "waited_flush": Derived, waited_flush: u64;
        /// Messages of which `wait_gpu_consume_ns` is known.
        "waited_gpu_consume": Derived, waited_gpu_consume: u64;
        /// Messages of which `wait_flush_or_gpu_consume_ns` is known.
        "waited_flush_or_gpu_consume": Derived, waited_flush_or_gpu_consume: u64;
    }
}
