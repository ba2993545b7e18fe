//! Symbols and layouts that a dump needs of a library.

use nccl_library::{
    fields::{
        self,
        enums::{DATA_TYPE, FUNC, PATTERN, PROXY_OP_STATE, RED_OP, RESULT},
    },
    symbols::Request,
};

pub(crate) fn request() -> Request {
    let structs = [
        fields::comm::STRUCT,
        fields::channel::STRUCT,
        fields::channel_peer::STRUCT,
        fields::connector::STRUCT,
        fields::PROXY_CONNECTOR,
        fields::proxy_connection::STRUCT,
        fields::proxy_state::STRUCT,
        fields::PROXY_PROGRESS_STATE,
        fields::proxy_args::STRUCT,
        fields::proxy_sub_args::STRUCT,
        fields::shared_resources::STRUCT,
        fields::CONFIG,
        fields::send_mem::STRUCT,
        fields::recv_mem::STRUCT,
        fields::send_net_resources::STRUCT,
        fields::recv_net_resources::STRUCT,
        fields::peer_info::STRUCT,
        fields::kernel_plan::STRUCT,
        fields::task_p2p::STRUCT,
        fields::bootstrap_state::STRUCT,
        fields::ras_peer::STRUCT,
    ];
    let enums = [FUNC, PATTERN, RESULT, PROXY_OP_STATE, DATA_TYPE, RED_OP];
    Request {
        functions: Vec::new(),
        structs: structs.map(|strukt| strukt.name.to_owned()).into(),
        enums: enums.map(str::to_owned).into(),
        variables: fields::variables_of_dump(),
    }
}
