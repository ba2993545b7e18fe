//! Kernels on symmetric memory, by their symbols: a launch's plan names its kernel by an address alone.
//!
//! The address is that of the kernel's host function. A plan also has the address of `reclaimPlan`, of the
//! same library, so the distance of the two says which kernel it is, wherever the library is mapped.

use serde::{Deserialize, Serialize};

use super::mangled;
use crate::{elf::SymbolTable, nccl::Name};

/// Beginnings of the kernels' names: 2.27, and 2.28 and later.
const PREFIXES: [&str; 2] = ["ncclSymDevKernel_", "ncclSymkDevKernel_"];

/// Function whose address a plan has.
const RECLAIM: &str = "reclaimPlan";

/// Kernels that are kept; 2.32 has 360.
const MAX_KERNELS: usize = 4096;

/// A kernel on symmetric memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SymmetricKernel {
    /// Name behind `ncclSymkDevKernel_`: `AllReduce_AGxLLMC_R_sum_f32`.
    pub name: Name,
    /// Address of its host function, counted from that of `reclaimPlan`.
    pub from_reclaim: i64,
}

impl SymmetricKernel {
    /// Returns NCCL's function: `AllReduce`.
    pub fn function(&self) -> &str {
        self.name.split('_').next().unwrap_or_default()
    }

    /// Returns reduction and element type by NCCL's names, where the kernel is made for one: `sum`,
    /// `float32`.
    pub fn reduction(&self) -> Option<(&str, &'static str)> {
        let name = self.name.strip_suffix("_profile").unwrap_or(&self.name);
        let (rest, element) = name.rsplit_once('_')?;
        let (_, op) = rest.rsplit_once('_')?;
        let element = match element {
            "i8" => "int8",
            "u8" => "uint8",
            "i32" => "int32",
            "u32" => "uint32",
            "i64" => "int64",
            "u64" => "uint64",
            "f16" => "float16",
            "f32" => "float32",
            "f64" => "float64",
            "bf16" => "bfloat16",
            "f8e4m3" => "float8e4m3",
            "f8e5m2" => "float8e5m2",
            _ => return None,
        };
        // The kernel of an average multiplies and adds.
        let op = if op == "sumpostdiv" { "avg" } else { op };
        op.bytes().all(|byte| byte.is_ascii_lowercase()).then_some((op, element))
    }

    /// Returns the way in which the data goes: `AGxLLMC_R`.
    pub fn way(&self) -> &str {
        let way = self.name.split_once('_').map_or("", |(_, way)| way);
        let way = way.strip_suffix("_profile").unwrap_or(way);
        match self.reduction() {
            // Two words less: reduction and type.
            Some(_) => way.rsplitn(3, '_').nth(2).unwrap_or(way),
            None => way,
        }
    }
}

/// Finds the kernels in a table that has local functions, too.
pub(super) fn find(table: &SymbolTable) -> Vec<SymmetricKernel> {
    let named = |symbol: &str| {
        mangled::parse(symbol).filter(|parsed| !parsed.is_clone).map(|parsed| parsed.name.to_owned())
    };
    let mut reclaim = None;
    let mut kernels = Vec::new();
    for symbol in table.functions() {
        // Most symbols are neither: no allocation for them.
        if !PREFIXES.iter().any(|prefix| symbol.name.contains(prefix)) && !symbol.name.contains(RECLAIM) {
            continue;
        }
        let Some(name) = named(symbol.name) else { continue };
        if name == RECLAIM {
            // Of two neither is taken.
            reclaim = if reclaim.is_none() { Some(symbol.address.0) } else { Some(0) };
        } else if let Some(name) = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))
            && kernels.len() < MAX_KERNELS
        {
            kernels.push((Name::from(name), symbol.address.0));
        }
    }
    let Some(reclaim) = reclaim.filter(|address| *address != 0) else { return Vec::new() };
    let from_reclaim = |address: u64| address.wrapping_sub(reclaim).cast_signed();
    kernels.into_iter().map(|(name, at)| SymmetricKernel { name, from_reclaim: from_reclaim(at) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernels_name_says_function_way_reduction_and_type() {
        let kernel = |name: &str| SymmetricKernel { name: name.into(), from_reclaim: 0 };
        for (name, function, way, reduction) in [
            ("AllReduce_AGxLLMC_R_sum_f32", "AllReduce", "AGxLLMC_R", Some(("sum", "float32"))),
            ("AllGather_LL", "AllGather", "LL", None),
            ("AllGather_RailRing_LsaSTMC", "AllGather", "RailRing_LsaSTMC", None),
            ("ReduceScatter_LD_sum_bf16", "ReduceScatter", "LD", Some(("sum", "bfloat16"))),
            (
                "ReduceScatter_RailA2A_LsaLD_avg_f8e4m3_profile",
                "ReduceScatter",
                "RailA2A_LsaLD",
                Some(("avg", "float8e4m3")),
            ),
        ] {
            let kernel = kernel(name);
            assert_eq!(
                (kernel.function(), kernel.way(), kernel.reduction()),
                (function, way, reduction),
                "{name}"
            );
        }
        assert_eq!((kernel("").function(), kernel("").way(), kernel("").reduction()), ("", "", None));
    }
}
