//! A rank of a communicator, as the `ncclComm` in the memory of its process describes it.

use flow::{decode::CommunicatorPlaces, identity::CommunicatorFacts};
use nccl_library::{elf::RuntimeAddr, fields::IntField};

use crate::{
    gpu::{self, DriverFacts},
    memory::Memory,
    process::printable,
};

/// `NCCL_MAGIC`, src/include/comm.h.
const MAGIC: u64 = 0x0280_0280_0280_0280;

/// Most bytes of a communicator's name that are kept.
const MAX_NAME: usize = 128;

/// Bound below which numbers of nodes and devices are believed.
const MAX_NUMBER: u32 = 1 << 20;

/// A communicator as a record names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Seen {
    /// Process, by the number in records.
    pub tgid: u32,
    /// Address of the `ncclComm`.
    pub pointer: u64,
    /// `commHash`; `None` before 2.18.
    pub hash: Option<u64>,
    pub rank: i32,
    pub n_ranks: i32,
}

/// Reads the communicator that a record named some moments ago. Gives `None` if its memory holds another
/// one by now, or none.
pub fn read_communicator(
    memory: Memory<'_>,
    places: &CommunicatorPlaces,
    seen: &Seen,
    pid: u32,
) -> Option<CommunicatorFacts> {
    let proof = [places.start_magic, places.end_magic, places.hash, Some(places.rank), Some(places.n_ranks)];
    let number = |value: i32| Some(u64::from(value.cast_unsigned()));
    let magic = |place: Option<IntField>| place.map(|_| MAGIC);
    let expected = [
        magic(places.start_magic),
        magic(places.end_magic),
        places.hash.and(seen.hash),
        number(seen.rank),
        number(seen.n_ranks),
    ];
    let is_it = || values(memory, seen.pointer, proof) == Some(expected);
    if !is_it() {
        return None;
    }
    let wanted = [
        places.local_rank,
        places.node,
        places.n_nodes,
        places.cuda_dev,
        places.nvml_dev,
        places.bus_id,
        places.name,
    ];
    let [local_rank, node, n_nodes, cuda_dev, nvml_dev, bus_id, name] = values(memory, seen.pointer, wanted)?;
    let comm_name = name.and_then(|at| text(memory, at));
    if !is_it() {
        return None;
    }
    // -1 means none, as does any value that is no number of a device.
    let small = |value: Option<u64>| {
        value.and_then(|value| u32::try_from(value).ok()).filter(|value| *value < MAX_NUMBER)
    };
    Some(CommunicatorFacts {
        pid,
        comm_hash: flow::schema::comm_hash_name(seen.hash),
        rank: seen.rank,
        n_ranks: Some(seen.n_ranks),
        comm_name,
        local_rank: small(local_rank),
        node: small(node),
        n_nodes: small(n_nodes),
        cuda_dev: small(cuda_dev),
        nvml_dev: small(nvml_dev),
        bus_id: bus_id.and_then(gpu::bus_id),
        ..CommunicatorFacts::default()
    })
}

/// Adds the properties of the GPU that the driver of this host states.
pub fn with_driver(facts: CommunicatorFacts) -> CommunicatorFacts {
    let DriverFacts { uuid, minor, instances } =
        facts.bus_id.as_deref().map(DriverFacts::read).unwrap_or_default();
    CommunicatorFacts { gpu_uuid: uuid, gpu_minor: minor, gpu_instances: instances, ..facts }
}

/// Reads fields of the struct at `base`; `None` for those that the version lacks.
fn values<const N: usize>(
    memory: Memory<'_>,
    base: u64,
    places: [Option<IntField>; N],
) -> Option<[Option<u64>; N]> {
    let address = |place: &IntField| RuntimeAddr(base.saturating_add(place.offset()));
    let pieces: Vec<_> = places.iter().flatten().map(|place| (address(place), place.size())).collect();
    let bytes = memory.gather(&pieces).ok()?;
    let mut rest = bytes.as_slice();
    Some(places.map(|place| {
        let (value, tail) = rest.split_at_checked(place?.size())?;
        rest = tail;
        nccl_library::fields::unsigned(value)
    }))
}

/// Reads a short text that the program gave, safe for a terminal; `None` if it gave none. NCCL keeps
/// the address and not the text, so the program can have freed it: bytes that are no text give `None`.
fn text(memory: Memory<'_>, at: u64) -> Option<String> {
    let mut bytes = [0; MAX_NAME];
    let read = memory.read_some(RuntimeAddr(at), &mut bytes).ok().filter(|_| at != 0)?;
    let text = bytes.get(..read)?.split(|byte| *byte == 0).next()?;
    let text = std::str::from_utf8(text).or_else(|error| {
        // A long text is cut, perhaps in the middle of a character.
        let is_cut = text.len() == MAX_NAME && error.error_len().is_none();
        std::str::from_utf8(text.get(..error.valid_up_to()).filter(|_| is_cut).unwrap_or(text))
    });
    text.ok().map(printable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::Process;

    /// Makes up an `ncclComm`: its places, and the struct.
    fn made(name: &std::ffi::CStr) -> (CommunicatorPlaces, [u64; 12]) {
        let place = |word: u64, size| IntField::new(8 * word, size);
        let places = CommunicatorPlaces {
            start_magic: place(0, 8),
            end_magic: place(11, 8),
            hash: place(1, 8),
            rank: place(2, 4).unwrap(),
            n_ranks: place(3, 4).unwrap(),
            local_rank: place(4, 4),
            node: place(5, 4),
            n_nodes: None,
            cuda_dev: place(6, 4),
            nvml_dev: place(7, 4),
            bus_id: place(8, 8),
            name: place(9, 8),
        };
        let name = name.as_ptr().expose_provenance() as u64;
        (places, [MAGIC, 0xabc, 3, 8, 1, 0, 2, 0xffff_ffff, 0x3b000, name, 0, MAGIC])
    }

    #[test]
    fn a_communicator_is_read_if_it_is_still_the_one() {
        let (places, comm) = made(c"tensor\u{202e}[2J parallel");
        let process = Process::open(std::process::id()).unwrap();
        let pointer = comm.as_ptr().expose_provenance() as u64;
        let seen = Seen { tgid: 7, pointer, hash: Some(0xabc), rank: 3, n_ranks: 8 };
        let read = |seen| read_communicator(Memory::new(&process), &places, &seen, 70);
        let expected = CommunicatorFacts {
            pid: 70,
            comm_hash: "0x0000000000000abc".to_owned(),
            rank: 3,
            n_ranks: Some(8),
            comm_name: Some("tensor\u{fffd}[2J parallel".to_owned()),
            local_rank: Some(1),
            node: Some(0),
            n_nodes: None,
            cuda_dev: Some(2),
            nvml_dev: None,
            bus_id: Some("0000:3b:00.0".to_owned()),
            gpu_uuid: None,
            gpu_minor: None,
            gpu_instances: None,
            nics: Vec::new(),
        };
        assert_eq!(read(seen).unwrap(), expected);
        for other in [
            Seen { rank: 2, ..seen },
            Seen { n_ranks: 9, ..seen },
            Seen { hash: Some(1), ..seen },
            Seen { pointer: pointer + 8, ..seen },
        ] {
            assert_eq!(read(other), None, "{other:?}");
        }
        assert_eq!(read(Seen { pointer: 8, ..seen }), None);
    }

    #[test]
    fn a_name_that_is_no_text_is_none() {
        let process = Process::open(std::process::id()).unwrap();
        let read = |name: &[u8]| text(Memory::new(&process), name.as_ptr().expose_provenance() as u64);
        assert_eq!(read(b"dp\0").as_deref(), Some("dp"));
        assert_eq!(read(b"\xa8\x07a\0"), None, "freed, and used for something else");
        let long = "\u{e4}".repeat(200);
        assert_eq!(read(&[b"x", long.as_bytes()].concat()).unwrap().chars().count(), 64);
        assert_eq!(text(Memory::new(&process), 0), None);
    }
}
