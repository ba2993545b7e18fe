use super::*;
use crate::{memory::Region, process::Process};

const WORD: u64 = 0x1234_5678_9abc_def1;

fn space_of(data: &[u64]) -> AddressSpace {
    let start = data.as_ptr() as u64;
    let region = Region { start, end: start + 8 * data.len() as u64, is_heap: false };
    AddressSpace { regions: vec![region], ..AddressSpace::default() }
}

fn search(
    space: &AddressSpace,
    needle: Needle,
    limits: ScanLimits,
    found: impl FnMut(RuntimeAddr) -> ControlFlow<()>,
) -> ScanReport {
    let process = Process::open(std::process::id()).unwrap();
    super::search(Memory::new(&process), limits, space, needle, found, |_| {}).unwrap()
}

fn places_of(data: &[u64], needle: Needle) -> (Vec<usize>, ScanReport) {
    let mut found = Vec::new();
    let report = search(&space_of(data), needle, ScanLimits::default(), |at| {
        found.push(usize::try_from((at.0 - data.as_ptr() as u64) / 8).unwrap());
        ControlFlow::Continue(())
    });
    found.sort_unstable();
    (found, report)
}

#[test]
fn words_are_found_where_they_are_also_at_the_edges_of_chunks_and_by_several_threads() {
    // 400 MB would take long to write; 160 MB keep two threads busy.
    let mut data = vec![7u64; 20_000_000];
    let places = [0, 1, 65_535, 65_536, 131_071, 131_072, 200_000, 8_388_607, 8_388_608, 19_999_999];
    for place in places {
        data[place] = WORD;
    }
    let (found, report) = places_of(&data, Needle::Word(WORD));
    assert_eq!(found, places);
    assert!(report.complete && report.scanned_bytes == 160_000_000 && report.unreadable == 0, "{report:?}");
}

#[test]
fn a_word_that_stands_askew_is_none() {
    let mut data = vec![0u64; 100];
    data[10] = WORD << 8;
    data[11] = WORD >> 56;
    data[50] = WORD;
    assert_eq!(places_of(&data, Needle::Word(WORD)).0, [50]);
}

#[test]
fn nccls_own_word_is_found_beside_halves_of_itself() {
    const MAGIC: u64 = 0x0280_0280_0280_0280;
    let mut data = vec![0x0280_0280_0000_0000u64; 100];
    data[20] = MAGIC;
    data[40] = MAGIC;
    assert_eq!(places_of(&data, Needle::Word(MAGIC)).0, [20, 40]);
    // The buffer is filled at run time: an array of constants lies in the program's file, of which a page
    // that nobody has read is not in memory, and only pages in memory are searched.
    data.fill(MAGIC);
    assert_eq!(places_of(&data, Needle::Word(MAGIC)).0, (0..100).collect::<Vec<_>>());
}

#[test]
fn pointers_to_themselves_are_found() {
    let mut data = vec![0u64; 1000];
    let own = data.as_ptr() as u64;
    data[500] = own + 8 * 500 - 64;
    data[501] = own;
    assert_eq!(places_of(&data, Needle::SelfPointer(64)).0, [500]);
}

#[test]
fn limits_and_an_early_end_are_reported_as_what_they_are() {
    let data = vec![WORD; 1_000_000];
    let go = |limits, end: ControlFlow<()>| search(&space_of(&data), Needle::Word(WORD), limits, |_| end);
    let few = ScanLimits { bytes: 1 << 20, ..ScanLimits::default() };
    let report = go(few, ControlFlow::Continue(()));
    assert!(!report.complete && report.scanned_bytes < 4 << 20, "{report:?}");
    assert_eq!(report.ended_by, Some(ScanEnd::ByteLimit));
    assert_eq!(go(ScanLimits::default(), ControlFlow::Break(())).ended_by, Some(ScanEnd::Found));
    let no_time = ScanLimits { time: Duration::ZERO, ..ScanLimits::default() };
    let report = go(no_time, ControlFlow::Continue(()));
    assert_eq!((report.scanned_bytes, report.ended_by), (0, Some(ScanEnd::TimeLimit)));
}

#[test]
fn what_was_unmapped_meanwhile_is_passed_over_and_not_fatal() {
    let data = vec![WORD; 1000];
    let mut space = space_of(&data);
    space.regions.insert(0, Region { start: 0x1000, end: 0x3000, is_heap: false });
    let mut count = 0;
    let report = search(&space, Needle::Word(WORD), ScanLimits::default(), |_| {
        count += 1;
        ControlFlow::Continue(())
    });
    assert_eq!((count, report.scanned_bytes), (1000, 8000));
}
