//! torch's names of NCCL's calls, and the tensors that torch would have noted of them.

use std::sync::Arc;

use super::{Entry, Places, ProcessGroup};

/// A function of NCCL that torch's recorder has an operation for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Function {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Reduce,
    AlltoAll,
    Gather,
    Scatter,
    /// Broadcasts of a group, which NCCL runs as one (2.29 and later).
    AllGatherV,
    Send,
    Recv,
}

impl Function {
    /// All functions, with NCCL's name and torch's. NCCL gathers into one buffer, and reduces from one:
    /// torch's names for that are those of `all_gather_into_tensor` and `reduce_scatter_tensor`.
    const ALL: [(Self, &str, &str); 11] = [
        (Self::AllReduce, "AllReduce", "all_reduce"),
        (Self::AllGather, "AllGather", "_all_gather_base"),
        (Self::ReduceScatter, "ReduceScatter", "_reduce_scatter_base"),
        (Self::Broadcast, "Broadcast", "broadcast"),
        (Self::Reduce, "Reduce", "reduce"),
        (Self::AlltoAll, "AlltoAll", "all_to_all"),
        (Self::Gather, "Gather", "gather"),
        (Self::Scatter, "Scatter", "scatter"),
        (Self::AllGatherV, "AllGatherV", "all_gather_v"),
        (Self::Send, "Send", "send"),
        (Self::Recv, "Recv", "recv"),
    ];

    /// Finds the function of NCCL's name, such as `AllReduce`.
    pub fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|(_, nccl, _)| *nccl == name).map(|(function, ..)| function)
    }

    /// Returns the number of the function, by which it is kept in a byte.
    pub fn code(self) -> u8 {
        let at = Self::ALL.iter().position(|(function, ..)| *function == self);
        at.and_then(|at| u8::try_from(at).ok()).unwrap_or_default()
    }

    pub fn of_code(code: u8) -> Option<Self> {
        Self::ALL.get(usize::from(code)).map(|(function, ..)| *function)
    }

    pub fn is_p2p(self) -> bool {
        matches!(self, Self::Send | Self::Recv)
    }

    /// Tells whether NCCL runs the function as a collective, and counts it as one: others it makes of sends
    /// and receives.
    pub fn is_counted(self) -> bool {
        !self.is_p2p() && !matches!(self, Self::AlltoAll | Self::Gather | Self::Scatter)
    }
}

/// An operation as NCCL was called.
#[derive(Clone, Copy, Debug)]
pub struct Operation<'a> {
    pub function: Function,
    /// Elements as the program gave them: of the vector, or of each rank's part. `None`: not known.
    pub count: Option<u64>,
    /// The type by NCCL's name: `float32`. `None`: not known.
    pub datatype: Option<&'a str>,
    /// This rank, the root and the peer, as the communicator numbers its ranks.
    pub rank: u32,
    pub root: Option<u32>,
    pub peer: Option<u32>,
}

impl Operation<'_> {
    /// Makes the entry that torch would have: its group, name, sizes and types. A size that is not known is 0
    /// elements: torch's readers multiply them.
    pub fn entry(&self, group: &ProcessGroup, places: &Places) -> Entry {
        let name = Function::ALL.iter().find(|(function, ..)| *function == self.function);
        let name = name.map_or("", |(_, _, torch)| *torch);
        let profiling_name = match (self.function, self.peer) {
            (Function::Send, Some(peer)) => {
                format!("nccl:{name} {}->{}", places.place(self.rank), places.place(peer))
            }
            (Function::Recv, Some(peer)) => {
                format!("nccl:{name} {}<-{}", places.place(self.rank), places.place(peer))
            }
            _ => format!("nccl:{name}"),
        };
        let one = self.count.unwrap_or(0);
        let all = one.saturating_mul(group.ranks.len() as u64);
        let is_root = self.root == Some(self.rank);
        let (input, output) = match self.function {
            Function::AllGather => (Some(one), Some(all)),
            Function::ReduceScatter => (Some(all), Some(one)),
            Function::AlltoAll => (Some(all), Some(all)),
            Function::Gather => (Some(one), is_root.then_some(all)),
            Function::Scatter => (is_root.then_some(all), Some(one)),
            _ => (Some(one), Some(one)),
        };
        let tensor = |elements: Option<u64>| -> (Vec<Vec<i64>>, Vec<String>) {
            let Some(elements) = elements else { return (Vec::new(), Vec::new()) };
            let dtype = self.datatype.map(|name| dtype(name).to_owned());
            (vec![vec![i64::try_from(elements).unwrap_or(i64::MAX)]], dtype.into_iter().collect())
        };
        let (input_sizes, input_dtypes) = tensor(input);
        let (output_sizes, output_dtypes) = tensor(output);
        Entry {
            pg_id: group.pg_id.unwrap_or_default(),
            process_group: [&group.name, &group.description].map(Arc::clone),
            profiling_name,
            input_sizes,
            input_dtypes,
            output_sizes,
            output_dtypes,
            is_p2p: self.function.is_p2p(),
            ..Entry::default()
        }
    }
}

/// Returns torch's name of the type (`c10::toString(ScalarType)`), or NCCL's where torch has none.
fn dtype(name: &str) -> &str {
    match name {
        "int8" | "char" => "Char",
        "uint8" => "Byte",
        "int32" | "int" => "Int",
        "uint32" => "UInt32",
        "int64" => "Long",
        "uint64" => "UInt64",
        "float16" | "half" => "Half",
        "float32" | "float" => "Float",
        "float64" | "double" => "Double",
        "bfloat16" => "BFloat16",
        "float8e4m3" => "Float8_e4m3fn",
        "float8e5m2" => "Float8_e5m2",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(function: &str, group_ranks: &[u64]) -> Entry {
        let group = ProcessGroup { ranks: group_ranks.to_vec(), ..ProcessGroup::default() };
        let operation = Operation {
            function: Function::of(function).unwrap(),
            count: Some(10),
            datatype: Some("bfloat16"),
            rank: 1,
            root: Some(0),
            peer: Some(2),
        };
        operation.entry(&group, &Places::of(&group))
    }

    /// Sizes as `ProcessGroupNCCL.cpp` gives them to the recorder.
    #[test]
    fn tensors_are_those_that_torch_notes() {
        let sizes = |function| {
            let entry = described(function, &[0, 1, 2]);
            (entry.profiling_name, entry.input_sizes.concat(), entry.output_sizes.concat())
        };
        assert_eq!(sizes("AllReduce"), ("nccl:all_reduce".to_owned(), vec![10], vec![10]));
        assert_eq!(sizes("AllGather"), ("nccl:_all_gather_base".to_owned(), vec![10], vec![30]));
        assert_eq!(sizes("ReduceScatter"), ("nccl:_reduce_scatter_base".to_owned(), vec![30], vec![10]));
        assert_eq!(sizes("Gather"), ("nccl:gather".to_owned(), vec![10], vec![]));
        assert_eq!(sizes("Scatter"), ("nccl:scatter".to_owned(), vec![], vec![10]));
        assert_eq!(sizes("Send"), ("nccl:send 1->2".to_owned(), vec![10], vec![10]));
        assert_eq!(sizes("Recv").0, "nccl:recv 1<-2");
        assert_eq!(described("AllReduce", &[0, 1, 2]).input_dtypes, ["BFloat16"]);
        assert!(Function::of("PutSignal").is_none());
    }

    /// torch's readers take the numbers in a send's name as places in the sorted ranks of the job.
    #[test]
    fn ranks_in_names_are_places_among_the_jobs_ranks() {
        assert_eq!(described("Send", &[9, 4, 6]).profiling_name, "nccl:send 0->1");
    }

    #[test]
    fn functions_are_kept_in_a_byte() {
        for (function, ..) in Function::ALL {
            assert_eq!(Function::of_code(function.code()), Some(function));
        }
        assert_eq!(Function::of_code(200), None);
    }
}
