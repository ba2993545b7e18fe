//! The meaning of a device function's number.
//!
//! NCCL numbers its device functions at build time; the table `ncclDevFuncRowToId` leads from a row, which
//! follows from collective, reduction, type, algorithm and protocol, to the number. This file inverts the
//! table. NCCL has had four orders of rows (nccl:src/include/device.h, ncclDevFuncId); the right one has as
//! many rows as the table. Before 2.19 the number is the row.

use std::collections::HashMap;

use anyhow::{Result, bail};

use super::layout::Layout;
use super::memory;
use crate::library::Library;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Coll {
    SendRecv,
    AllGather,
    Broadcast,
    AllGatherV,
    AllReduce,
    Reduce,
    ReduceScatter,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Algo {
    Tree,
    Ring,
    Pat,
    /// An algorithm that needs hardware that the bed does not have.
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Proto {
    Ll,
    Ll128,
    Simple,
}

/// In the order of NCCL's numbers.
const PROTOS: [Proto; 3] = [Proto::Ll, Proto::Ll128, Proto::Simple];

#[derive(Debug, Clone, Copy)]
pub(crate) struct Function {
    pub(crate) coll: Coll,
    pub(crate) algo: Algo,
    pub(crate) proto: Proto,
    /// `ncclDevRedOp_t`
    pub(crate) redop: usize,
    /// `ncclDataType_t`; bytes where nothing is reduced.
    pub(crate) dtype: usize,
}

impl Function {
    /// Its chunks have two slices of two steps each.
    pub(crate) fn is_sliced(&self) -> bool {
        self.algo == Algo::Ring
            && self.proto == Proto::Simple
            && matches!(self.coll, Coll::AllReduce | Coll::AllGather | Coll::ReduceScatter)
    }
}

impl Proto {
    /// `NCCL_PROTO_…`
    pub(crate) fn index(self) -> usize {
        match self {
            Self::Ll => 0,
            Self::Ll128 => 1,
            Self::Simple => 2,
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Ll => "LL",
            Self::Ll128 => "LL128",
            Self::Simple => "SIMPLE",
        }
    }
}

impl Algo {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tree => "TREE",
            Self::Ring => "RING",
            Self::Pat => "PAT",
            Self::Other => "OTHER",
        }
    }
}

/// Functions by number.
#[derive(Debug)]
pub(crate) struct Functions(HashMap<u64, Function>);

impl Functions {
    pub(crate) fn read(library: &Library, layout: &Layout) -> Result<Self> {
        let Some(table) = library.device_symbol("ncclDevFuncRowToId") else {
            return match layout.algorithms_before_rows {
                Some(algorithms) => Ok(Self(by_formula(layout, algorithms))),
                None => bail!("the library has no symbol ncclDevFuncRowToId"),
            };
        };
        // The last entry is an end mark.
        let rows = (table.size / 4).saturating_sub(1);
        let Some(all) = [(2, false), (3, false), (4, false), (4, true)]
            .into_iter()
            .map(|(gather_algos, with_v)| enumerate(layout, gather_algos, with_v))
            .find(|all| all.len() == rows)
        else {
            bail!("ncclDevFuncRowToId has {rows} rows, in an order that is not known");
        };
        let mut by_id = HashMap::new();
        for (row, function) in all.into_iter().enumerate() {
            let id = memory::read(table.runtime_addr + 4 * row, 4);
            // Signed and unsigned integers share functions; either type will do.
            if id != u64::from(u32::MAX) {
                by_id.entry(id).or_insert(function);
            }
        }
        Ok(Self(by_id))
    }

    pub(crate) fn get(&self, id: u64) -> Option<Function> {
        self.0.get(&id).copied()
    }
}

/// Before 2.19 (nccl:v2.18.1-1:src/include/collectives.h, FUNC_INDEX).
fn by_formula(layout: &Layout, algorithms: usize) -> HashMap<u64, Function> {
    let mut all = HashMap::new();
    let mut id = 1 + layout.types as u64;
    for coll in [Coll::Broadcast, Coll::Reduce, Coll::AllGather, Coll::ReduceScatter, Coll::AllReduce] {
        for redop in 0..layout.redops {
            for dtype in 0..layout.types {
                for algo in 0..algorithms {
                    let algo = [Algo::Tree, Algo::Ring].get(algo).copied().unwrap_or(Algo::Other);
                    for proto in PROTOS {
                        all.insert(id, Function { coll, algo, proto, redop, dtype });
                        id += 1;
                    }
                }
            }
        }
    }
    all
}

fn enumerate(layout: &Layout, gather_algos: usize, with_v: bool) -> Vec<Function> {
    const ALLREDUCE_ALGOS: usize = 6;
    /// `ncclUint8`
    const BYTES: usize = 1;
    let mut all = vec![Function {
        coll: Coll::SendRecv,
        algo: Algo::Ring,
        proto: Proto::Simple,
        redop: 0,
        dtype: BYTES,
    }];
    let mut add = |coll, redop, dtype, algos: &[Algo]| {
        for &algo in algos {
            for proto in PROTOS {
                all.push(Function { coll, algo, proto, redop, dtype });
            }
        }
    };
    let mut ring_first = vec![Algo::Other; gather_algos];
    ring_first[0] = Algo::Ring;
    if let Some(fourth) = ring_first.get_mut(3) {
        *fourth = Algo::Pat;
    }
    let mut tree_first = vec![Algo::Other; ALLREDUCE_ALGOS];
    tree_first[..2].copy_from_slice(&[Algo::Tree, Algo::Ring]);
    add(Coll::AllGather, 0, BYTES, &ring_first);
    add(Coll::Broadcast, 0, BYTES, &[Algo::Ring]);
    if with_v {
        add(Coll::AllGatherV, 0, BYTES, &[Algo::Ring]);
    }
    for (coll, algos) in [
        (Coll::AllReduce, tree_first.as_slice()),
        (Coll::Reduce, &[Algo::Ring]),
        (Coll::ReduceScatter, &ring_first),
    ] {
        for redop in 0..layout.redops {
            for dtype in 0..layout.types {
                add(coll, redop, dtype, algos);
            }
        }
    }
    all
}
