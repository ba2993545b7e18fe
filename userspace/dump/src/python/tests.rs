//! Tests of words and groups; stacks themselves are tested against Python (`cpython`'s tests, and tests/e2e).

use super::*;
use flow::schema::PythonFrame;

fn frame(file: &str, line: u32, function: &str) -> PythonFrame {
    PythonFrame { file: file.to_owned(), line: Some(line), function: function.to_owned(), qualname: None }
}

fn thread(frames: &[PythonFrame]) -> PythonThread {
    PythonThread { is_main: true, frames: frames.to_vec(), ..PythonThread::default() }
}

#[test]
fn a_place_is_the_innermost_line_and_the_users_own() {
    let own = frame("/home/a/train.py", 41, "load_batch");
    let library =
        frame("/opt/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", 2806, "all_reduce");
    assert_eq!(place(&thread(&[])), None);
    assert_eq!(place(&thread(std::slice::from_ref(&own))).unwrap(), "train.py:41 in load_batch");
    let both = thread(&[library.clone(), own.clone()]);
    assert_eq!(
        place(&both).unwrap(),
        "distributed_c10d.py:2806 in all_reduce, called from train.py:41 in load_batch"
    );
    assert_eq!(place(&thread(&[library])).unwrap(), "distributed_c10d.py:2806 in all_reduce");
    let moving = PythonThread { moving: true, ..thread(&[own]) };
    assert_eq!(place(&moving).unwrap(), "train.py:41 in load_batch (it runs)");
}

#[test]
fn ranks_with_equal_stacks_are_one_group_and_one_group_is_the_largest_or_none() {
    let most = thread(&[frame("train.py", 52, "step")]);
    let one = thread(&[frame("train.py", 41, "load_batch")]);
    let moving = PythonThread { moving: true, ..one.clone() };
    let unknown = PythonThread { unknown: Some(String::new()), ..one.clone() };
    let found = groups([
        (0, &most),
        (1, &one),
        (2, &most),
        (3, &most),
        (4, &moving),
        (5, &unknown),
        (6, &thread(&[])),
    ]);
    let ranks: Vec<(&[u32], bool)> = found.iter().map(|group| (&*group.ranks, group.is_largest)).collect();
    assert_eq!(ranks, [(&[0, 2, 3][..], true), (&[1][..], false)]);
    let found = groups([(0, &most), (1, &one)]);
    assert!(found.len() == 2 && found.iter().all(|group| !group.is_largest));
    assert!(groups([(0, &most)])[0].is_largest);
    assert!(groups([]).is_empty());
}
