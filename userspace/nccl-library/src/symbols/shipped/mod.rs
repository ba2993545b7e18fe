//! Struct layouts that are shipped with ncclflow, for libraries without debugging information.
//!
//! `layouts.jsonl` is made by `cargo xtask make layouts` from NVIDIA's wheels, with this project's own
//! resolver; nothing in it is written by hand. It is used only for a library whose identity is proven: by its
//! build-id, or by the version, the major version of CUDA and the processor, if nothing in its code
//! contradicts. Addresses of variables differ between builds of one version, so that only the build-id proves
//! them.

mod row;
mod table;

pub use row::{Extra, MemberRow, TypeRow};
pub use table::{FORMAT, Head, Library, Table, TableError};

use super::{Request, nccl_request};
use crate::fields::{AskedBy, structs_of, variables_of_dump};

/// Returns the request that the table answers for each library.
pub fn request() -> Request {
    let mut request = nccl_request();
    request.structs.extend(structs_of(&[AskedBy::Dump]));
    request.variables = variables_of_dump();
    request
}
