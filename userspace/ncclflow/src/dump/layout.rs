//! What a dump asks of a library.

use nccl_library::{
    fields::{
        CONFIG, PROXY_CONNECTOR, PROXY_PROGRESS_STATE, channel, channel_peer, comm, connector,
        enums::{DATA_TYPE, FUNC, PATTERN, PROXY_OP_STATE, RED_OP, RESULT},
        proxy_args, proxy_connection, proxy_state, proxy_sub_args, recv_mem, recv_net_resources, send_mem,
        send_net_resources, shared_resources,
    },
    symbols::Request,
};

/// Structs and enumerations that a dump needs; no functions.
pub(crate) fn request() -> Request {
    let structs = [
        comm::STRUCT,
        channel::STRUCT,
        channel_peer::STRUCT,
        connector::STRUCT,
        PROXY_CONNECTOR,
        proxy_connection::STRUCT,
        proxy_state::STRUCT,
        PROXY_PROGRESS_STATE,
        proxy_args::STRUCT,
        proxy_sub_args::STRUCT,
        shared_resources::STRUCT,
        CONFIG,
        send_mem::STRUCT,
        recv_mem::STRUCT,
        send_net_resources::STRUCT,
        recv_net_resources::STRUCT,
    ];
    let enums = [FUNC, PATTERN, RESULT, PROXY_OP_STATE, DATA_TYPE, RED_OP];
    Request {
        functions: Vec::new(),
        structs: structs.iter().map(|strukt| strukt.name.to_owned()).collect(),
        enums: enums.map(str::to_owned).to_vec(),
    }
}
