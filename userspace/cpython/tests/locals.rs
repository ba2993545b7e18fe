//! Variables of a frame that are read from outside, against what the program gave them: every CPython that is
//! found.

mod support;

use std::process::Command;

use cpython::{Value, Walker};
use support::Subject;
use test_support::need_pythons;

/// A function that waits, with variables of all kinds: arguments, locals, one that is not set, one of a
/// closure, and values of other types.
const PROGRAM: &str = "
import os
def wait(key, keys, count, *args, flag=True, **more):
    store_key = key + '/größe'
    world_key = '世界'
    big_key, negative_key, zero_key, huge_key = 3 << 40, -70000, 0, 1 << 90
    tuple_key = tuple(keys)
    mixed_key = ['a', 1]
    bytes_key = b'x'
    many_keys = [str(n) for n in range(20)]
    none_key = None
    kept_key = 'kept'
    other = 'not asked for'
    os.write(1, b'\\n'), os.read(0, 1)
    late_key = 'late'
    return lambda: kept_key
wait('ready', ['a', 'bc'], 5)
";

#[test]
fn variables_are_what_the_program_gave_them() {
    let Some(pythons) = need_pythons() else { return };
    for python in pythons {
        let mut subject = Subject::start(Command::new(&python.program).args(["-I", "-c", PROGRAM]));
        subject.line().unwrap();
        let memory = &subject.memory;
        let walker = Walker::new(subject.python(), memory);
        let thread = walker.threads().unwrap()[0];
        let is_wanted = |name: &str| name.contains("key") || name == "count";
        // It has written its line, and goes on until it reads.
        let (innermost, mut read) = loop {
            let innermost = walker.stack(thread).frames[0];
            if let Some(read) = walker.innermost_locals(thread, innermost, is_wanted).unwrap() {
                break (innermost, read);
            }
        };
        read.sort_by(|(one, _), (other, _)| one.cmp(other));
        let texts =
            |texts: &[&str], length| Value::Texts(texts.iter().map(ToString::to_string).collect(), length);
        let text = |text: &str| Value::Text(text.to_owned());
        let many: Vec<String> = (0..8).map(|number| number.to_string()).collect();
        let expected = [
            ("big_key", Value::Number(3 << 40)),
            ("count", Value::Number(5)),
            ("key", text("ready")),
            ("keys", texts(&["a", "bc"], 2)),
            ("many_keys", Value::Texts(many, 20)),
            ("negative_key", Value::Number(-70000)),
            ("store_key", text("ready/größe")),
            ("tuple_key", texts(&["a", "bc"], 2)),
            ("world_key", text("世界")),
            ("zero_key", Value::Number(0)),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value));
        assert_eq!(read, expected, "{}", python.release);
        // Of a frame that is another one nothing is said.
        let another = cpython::RawFrame { offset: innermost.offset + 2, ..innermost };
        assert_eq!(walker.innermost_locals(thread, another, is_wanted), Ok(None), "{}", python.release);
        subject.go_on();
    }
}
