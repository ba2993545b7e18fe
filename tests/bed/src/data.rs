//! Input values and expected results. Each value depends on rank, operation and element. Sums of up to 64
//! ranks are exact in every type.

use std::ops::Range;

use crate::options::{DataType, OpKind};

/// Elements that are made at once, by loops without branches: making and checking takes most of a job's time.
const BLOCK: usize = 256;

/// Adds what these elements of one rank's input have in one operation, from an element on.
fn add_values(rank: u32, op: u64, first: usize, sums: &mut [u32]) {
    let key = (u64::from(rank) + 1).wrapping_mul(0xc2b2_ae3d_27d4_eb4f)
        ^ (op + 1).wrapping_mul(0x1656_67b1_9e37_79f9);
    let key = ((key ^ (key >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as u32;
    // Checks of overflow would keep the loop from being vectorised.
    for (element, sum) in (0..BLOCK as u32).zip(sums) {
        // Marsaglia's xorshift.
        let mut mixed = (first as u32).wrapping_add(element) ^ key;
        mixed ^= mixed << 13;
        mixed ^= mixed >> 17;
        mixed ^= mixed << 5;
        *sum = sum.wrapping_add(mixed >> 16);
    }
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

    /// The ranks whose inputs are summed up in a part of `count` elements of `rank`'s output, and the element of
    /// the input at which the part begins; none where the operation leaves it undefined.
    fn sources(&self, rank: u32, part: u32) -> Option<(Range<u32>, usize)> {
        let all = 0..self.ranks;
        let one = |rank: u32| rank..rank + 1;
        let own_part = rank as usize * self.count;
        Some(match self.kind {
            OpKind::AllReduce => (all, 0),
            OpKind::Reduce if rank == self.root() => (all, 0),
            OpKind::Reduce => return None,
            OpKind::AllGather => (one(part), 0),
            OpKind::ReduceScatter => (all, own_part),
            OpKind::Broadcast | OpKind::Bcast => (one(self.root()), 0),
            OpKind::SendRecv | OpKind::SendAcross | OpKind::SendStage | OpKind::ReturnStage => {
                (one(self.peers(rank).1?), 0)
            }
            OpKind::AllToAll => (one(part), own_part),
        })
    }

    /// Fills the input of `rank`.
    pub(crate) fn fill(&self, rank: u32, buffer: &mut [u8]) {
        self.dtype.write((rank..rank + 1, 0), self.op, buffer);
    }

    /// Compares every element of the output of `rank`. Returns how many were compared, or the first that is
    /// wrong.
    pub(crate) fn check(&self, rank: u32, buffer: &[u8]) -> Result<u64, String> {
        let (size, mut wanted) = (self.dtype.size(), [0; BLOCK * 8]);
        let (mut checked, mut wrong, mut first) = (0, 0, None);
        for (part, output) in (0..).zip(buffer.chunks(self.count * size)) {
            let Some((ranks, begin)) = self.sources(rank, part) else { continue };
            for (block, found) in output.chunks(BLOCK * size).enumerate() {
                let wanted = &mut wanted[..found.len()];
                self.dtype.write((ranks.clone(), begin + block * BLOCK), self.op, wanted);
                checked += (found.len() / size) as u64;
                if found == wanted {
                    continue;
                }
                let elements = found.chunks_exact(size).zip(wanted.chunks_exact(size)).enumerate();
                for (element, (found, wanted)) in elements.filter(|(_, (found, wanted))| found != wanted) {
                    wrong += 1;
                    let element = part as usize * self.count + block * BLOCK + element;
                    first.get_or_insert((element, self.dtype.show(found), self.dtype.show(wanted)));
                }
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
    /// Writes the sums of the ranks' inputs in an operation, from an element on.
    fn write(self, (ranks, first): (Range<u32>, usize), op: u64, to: &mut [u8]) {
        for (block, to) in to.chunks_mut(BLOCK * self.size()).enumerate() {
            let mut sums = [0; BLOCK];
            let sums = &mut sums[..to.len() / self.size()];
            for rank in ranks.clone() {
                add_values(rank, op, first + block * BLOCK, sums);
            }
            match self {
                Self::Uint8 => write_each(sums, to, |sum| (sum as u8).to_ne_bytes()),
                Self::Int32 => write_each(sums, to, |sum| sum.cast_signed().to_ne_bytes()),
                Self::Int64 => write_each(sums, to, |sum| i64::from(sum).to_ne_bytes()),
                Self::Float32 => write_each(sums, to, |sum| (sum as f32).to_ne_bytes()),
                Self::Float64 => write_each(sums, to, |sum| f64::from(sum).to_ne_bytes()),
            }
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

fn write_each<const N: usize>(sums: &[u32], to: &mut [u8], bytes: impl Fn(u32) -> [u8; N]) {
    for (sum, place) in sums.iter().zip(to.as_chunks_mut().0) {
        *place = bytes(*sum);
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

    /// By the sums of inputs that were written one by one, over several blocks and an odd rest.
    #[test]
    fn all_reduces_are_checked_against_the_sum_of_all_inputs() {
        for dtype in [DataType::Float32, DataType::Int64] {
            let shape =
                Shape { kind: OpKind::AllReduce, count: 2 * BLOCK + 3, dtype, ..shape(OpKind::AllReduce) };
            let number = |bytes: &[u8]| match dtype {
                DataType::Int64 => i64::from_ne_bytes(bytes.try_into().unwrap()),
                _ => f32::from_ne_bytes(bytes.try_into().unwrap()) as i64,
            };
            let inputs = [0, 1, 2].map(|rank| {
                let mut input = vec![0; shape.send_elements() * dtype.size()];
                shape.fill(rank, &mut input);
                input.chunks_exact(dtype.size()).map(number).collect::<Vec<_>>()
            });
            assert_ne!(inputs[0], inputs[1]);
            let sums = (0..shape.count).map(|element| inputs.iter().map(|input| input[element]).sum::<i64>());
            let bytes = sums.flat_map(|sum| match dtype {
                DataType::Int64 => sum.to_ne_bytes().to_vec(),
                _ => (sum as f32).to_ne_bytes().to_vec(),
            });
            let mut output: Vec<u8> = bytes.collect();
            assert_eq!(shape.check(1, &output), Ok(shape.count as u64));
            *output.last_mut().unwrap() ^= 1;
            let wrong = shape.check(1, &output).unwrap_err();
            assert!(wrong.contains("has 1 of 515 elements wrong, first at 514"), "{wrong}");
        }
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
