//! Input values and expected results. Each value depends on rank, operation and element. Sums of up to 32
//! ranks are exact in every type.

use crate::options::{DataType, OpKind};

/// The value of one element of one rank's input in one operation.
fn value(rank: u32, op: u64, element: usize) -> u16 {
    let mixed = (element as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (u64::from(rank) + 1).wrapping_mul(0xc2b2_ae3d_27d4_eb4f)
        ^ (op + 1).wrapping_mul(0x1656_67b1_9e37_79f9);
    let mixed = mixed ^ (mixed >> 29);
    (mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 48) as u16
}

/// The shape of an operation: how many elements each rank gives and gets.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    pub(crate) kind: OpKind,
    pub(crate) ranks: u32,
    /// Elements of the whole vector, or of one rank's part.
    pub(crate) count: usize,
    pub(crate) dtype: DataType,
    /// Ranks of a stage.
    pub(crate) stage: u32,
    /// Index of the operation in the run.
    pub(crate) op: u64,
}

impl Shape {
    pub(crate) fn root(&self) -> u32 {
        (self.op % u64::from(self.ranks)) as u32
    }

    /// The rank to which a rank sends, and that from which it receives, across nodes of three.
    fn across(&self, rank: u32) -> (Option<u32>, Option<u32>) {
        let (node, nodes) = (rank / 3, self.ranks / 3);
        match rank % 3 {
            _ if node >= nodes => (None, None),
            0 => (Some((node + 1) % nodes * 3 + 2), None),
            2 => (None, Some((node + nodes - 1) % nodes * 3)),
            _ => (None, None),
        }
    }

    /// The rank to which a rank sends, and that from which it receives, in an operation with one of each.
    pub(crate) fn peers(&self, rank: u32) -> (Option<u32>, Option<u32>) {
        match self.kind {
            OpKind::SendAcross => self.across(rank),
            OpKind::SendStage => {
                let to = Some(rank + self.stage).filter(|to| *to < self.ranks);
                (to, rank.checked_sub(self.stage))
            }
            OpKind::ReturnStage => {
                let from = Some(rank + self.stage).filter(|from| *from < self.ranks);
                (rank.checked_sub(self.stage), from)
            }
            _ => (Some((rank + 1) % self.ranks), Some((rank + self.ranks - 1) % self.ranks)),
        }
    }

    pub(crate) fn send_elements(&self) -> usize {
        match self.kind {
            OpKind::ReduceScatter | OpKind::AllToAll => self.count * self.ranks as usize,
            _ => self.count,
        }
    }

    pub(crate) fn recv_elements(&self) -> usize {
        match self.kind {
            OpKind::AllGather | OpKind::AllToAll => self.count * self.ranks as usize,
            _ => self.count,
        }
    }

    /// The result that `rank` must have, element by element; none where the operation leaves it undefined.
    fn expected(&self, rank: u32, element: usize) -> Option<u64> {
        let sum = |element| (0..self.ranks).map(|from| u64::from(value(from, self.op, element))).sum();
        let (part, within) = (element / self.count, element % self.count);
        Some(match self.kind {
            OpKind::AllReduce => sum(element),
            OpKind::Reduce if rank == self.root() => sum(element),
            OpKind::Reduce => return None,
            OpKind::AllGather => u64::from(value(part as u32, self.op, within)),
            OpKind::ReduceScatter => sum(rank as usize * self.count + element),
            OpKind::Broadcast | OpKind::Bcast => u64::from(value(self.root(), self.op, element)),
            OpKind::SendRecv | OpKind::SendAcross | OpKind::SendStage | OpKind::ReturnStage => {
                u64::from(value(self.peers(rank).1?, self.op, element))
            }
            OpKind::AllToAll => u64::from(value(part as u32, self.op, rank as usize * self.count + within)),
        })
    }

    /// Fills the input of `rank`.
    pub(crate) fn fill(&self, rank: u32, buffer: &mut [u8]) {
        for (element, place) in buffer.chunks_exact_mut(self.dtype.size()).enumerate() {
            self.dtype.write(place, u64::from(value(rank, self.op, element)));
        }
    }

    /// Compares every element of the output of `rank`. Returns how many were compared, or the first that is
    /// wrong.
    pub(crate) fn check(&self, rank: u32, buffer: &[u8]) -> Result<u64, String> {
        let mut wanted = [0; 8];
        let wanted = &mut wanted[..self.dtype.size()];
        let (mut checked, mut wrong, mut first) = (0, 0_u64, None);
        for (element, place) in buffer.chunks_exact(self.dtype.size()).enumerate() {
            let Some(expected) = self.expected(rank, element) else { continue };
            self.dtype.write(wanted, expected);
            checked += 1;
            if place != wanted {
                wrong += 1;
                first.get_or_insert((element, self.dtype.show(place), self.dtype.show(wanted)));
            }
        }
        match first {
            None => Ok(checked),
            Some((element, found, wanted)) => Err(format!(
                "{:?} #{}: rank {rank} has {wrong} of {checked} elements wrong, first at {element}: {found}, not {wanted}",
                self.kind, self.op
            )),
        }
    }
}

impl DataType {
    fn write(self, place: &mut [u8], value: u64) {
        match self {
            Self::Uint8 => place.copy_from_slice(&(value as u8).to_ne_bytes()),
            Self::Int32 => place.copy_from_slice(&(value as i32).to_ne_bytes()),
            Self::Int64 => place.copy_from_slice(&value.cast_signed().to_ne_bytes()),
            Self::Float32 => place.copy_from_slice(&(value as f32).to_ne_bytes()),
            Self::Float64 => place.copy_from_slice(&(value as f64).to_ne_bytes()),
        }
    }

    fn show(self, place: &[u8]) -> String {
        let mut bytes = [0; 8];
        bytes[..place.len()].copy_from_slice(place);
        let [a, b, c, d, ..] = bytes;
        match self {
            Self::Uint8 => a.to_string(),
            Self::Int32 => i32::from_ne_bytes([a, b, c, d]).to_string(),
            Self::Int64 => i64::from_ne_bytes(bytes).to_string(),
            Self::Float32 => f32::from_ne_bytes([a, b, c, d]).to_string(),
            Self::Float64 => f64::from_ne_bytes(bytes).to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(kind: OpKind) -> Shape {
        Shape { kind, ranks: 3, stage: 3, count: 5, dtype: DataType::Float32, op: 7 }
    }

    #[test]
    fn a_wrong_element_is_found() {
        let shape = shape(OpKind::Broadcast);
        let mut buffer = vec![0; shape.recv_elements() * 4];
        shape.fill(shape.root(), &mut buffer);
        assert_eq!(shape.check(2, &buffer), Ok(5));
        buffer[8] ^= 1;
        assert!(shape.check(2, &buffer).is_err());
    }

    #[test]
    fn reduce_is_checked_at_the_root_only() {
        let shape = shape(OpKind::Reduce);
        assert_eq!(shape.check(shape.root() + 1, &[0; 20]), Ok(0));
        assert!(shape.check(shape.root(), &[0; 20]).is_err());
    }

    #[test]
    fn all_to_all_takes_this_ranks_part_of_each() {
        let shape = shape(OpKind::AllToAll);
        let mut output = Vec::new();
        for from in 0..3 {
            let mut input = vec![0; shape.send_elements() * 4];
            shape.fill(from, &mut input);
            output.extend_from_slice(&input[20..40]);
        }
        assert_eq!(shape.check(1, &output), Ok(15));
    }
}
