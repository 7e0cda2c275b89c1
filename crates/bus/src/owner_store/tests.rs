use std::path::Path;

use super::*;

fn open(path: &Path) -> (Index, Vec<(String, String)>) {
    open_with(path, 0)
}

fn open_with(path: &Path, memory: u64) -> (Index, Vec<(String, String)>) {
    let mut learned = Vec::new();
    let limits = BusLimits { memory, owner_expiry: Duration::from_secs(100), ..BusLimits::default() };
    let index = Index::open(path, &limits, |session, identity| {
        learned.push((format!("{session:?}"), identity.to_owned()));
    });
    learned.sort();
    (index.unwrap(), learned)
}

fn own(session: &str, identity: &str) -> OwnerEntry {
    OwnerEntry::Record { session: session.into(), identity: identity.into() }
}

fn in_pool(pool: &str, name: &str) -> OwnedName {
    OwnedName { pool: Some(pool.into()), name: name.into() }
}

fn own_in_pool(name: &str, identity: &str) -> OwnerEntry {
    OwnerEntry::Record { session: in_pool("pool", name), identity: identity.into() }
}

fn pairs(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(a, b)| (format!("{:?}", OwnedName::from(*a)), (*b).to_owned())).collect()
}

#[test]
fn written_owners_are_read_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("sub").join("owners");
    let (mut index, learned) = open(&path);
    assert_eq!(learned, []);
    let now = seconds();
    let odd = "s \"\n\\ü";
    index.write([own("a", "token:one"), own(odd, "uid:7"), own("c", "x")].into_iter(), now);
    let delete = |session: &str| OwnerEntry::Delete { session: session.into() };
    index.write([delete("a"), own("a", "token:two"), delete("c")].into_iter(), now);
    drop(index);
    let (mut index, learned) = open(&path);
    assert_eq!(learned, pairs(&[("a", "token:two"), (odd, "uid:7")]));
    // An entry that repeats the owner is written only if the last record is old enough.
    let lines = index.file.lines();
    index.write([own("a", "token:two"), delete("c")].into_iter(), now);
    assert_eq!(index.file.lines(), lines);
    index.write([own("a", "token:two")].into_iter(), now + 24 * 3600);
    assert_eq!(index.file.lines(), lines + 1);
    index.rewrite().unwrap();
    assert_eq!(index.file.lines(), 2);
    index.write([own("d", "x")].into_iter(), now);
    drop(index);
    assert_eq!(open(&path).1, pairs(&[("a", "token:two"), ("d", "x"), (odd, "uid:7")]));
}

#[test]
fn a_session_does_not_change_its_owner() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("owners");
    let now = seconds();
    let (mut index, _) = open(&path);
    index.write([own("a", "token:one"), own("a", "token:two")].into_iter(), now);
    drop(index);
    // The owner is the same after a restart, and after a long time without use.
    let (mut index, learned) = open(&path);
    assert_eq!(learned, pairs(&[("a", "token:one")]));
    index.write([own("a", "token:two")].into_iter(), now + 24 * 3600);
    index.rewrite().unwrap();
    drop(index);
    let (mut index, learned) = open(&path);
    assert_eq!(learned, pairs(&[("a", "token:one")]));
    index.write([OwnerEntry::Delete { session: "a".into() }, own("a", "token:two")].into_iter(), now);
    drop(index);
    assert_eq!(open(&path).1, pairs(&[("a", "token:two")]));
}

#[test]
fn unused_owners_expire() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("owners");
    let (mut index, _) = open(&path);
    let now = seconds();
    index.write([own("old", "x")].into_iter(), now - 1000);
    index.write([own("new", "x")].into_iter(), now);
    assert_eq!(index.expire(now), ["old".into()]);
    drop(index);
    assert_eq!(open(&path).1, pairs(&[("new", "x")]));
}

#[test]
fn an_entry_that_guards_a_name_stays_as_long_as_the_name() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("owners");
    let (mut index, _) = open(&path);
    let now = seconds();
    let old = [
        own("s~2", "token:a"),
        own_in_pool("s", "token:a"),
        own_in_pool("t", "token:b"),
        own("t", "token:b"),
    ];
    index.write(old.into_iter(), now - 1000);
    index.write([own("s", "token:b"), own("t", "token:b")].into_iter(), now);
    let mut gone = index.expire(now);
    gone.sort();
    assert_eq!(gone, ["s~2".into(), in_pool("pool", "t")]);
    drop(index);
    let (mut index, learned) = open(&path);
    let mut expected = pairs(&[("s", "token:b"), ("t", "token:b")]);
    expected.insert(0, (format!("{:?}", in_pool("pool", "s")), "token:a".into()));
    assert_eq!(learned, expected);
    assert_eq!(index.expire(now + 1000).len(), 3);
}

#[test]
fn a_name_with_a_nul_and_a_name_in_a_pool_stay_different_on_disk() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("owners");
    let (mut index, _) = open(&path);
    let now = seconds();
    let names = ["pool\0s".into(), in_pool("pool", "s"), in_pool("pool", "\0s"), "pool\0\0s".into()];
    let entries = names.iter().enumerate().map(|(number, session)| OwnerEntry::Record {
        session: session.clone(),
        identity: format!("token:{number}").into(),
    });
    index.write(entries, now);
    for rewritten in [false, true] {
        for (number, session) in names.iter().enumerate() {
            assert_eq!(&*index.known[session].identity, format!("token:{number}"), "{session:?} {rewritten}");
        }
        assert_eq!(index.known.len(), names.len());
        if rewritten {
            index.rewrite().unwrap();
        }
        drop(index);
        index = open(&path).0;
    }
    index.write([OwnerEntry::Delete { session: "pool\0s".into() }].into_iter(), now);
    drop(index);
    let (index, _) = open(&path);
    assert!(index.known.contains_key(&in_pool("pool", "s")) && !index.known.contains_key(&"pool\0s".into()));
}

#[test]
fn a_line_of_an_older_version_guards_the_name_in_the_pool_and_the_name_of_clients() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("owners");
    let now = seconds();
    let old = format!(
        "{{\"narrows\":\"owners\",\"version\":1}}\n\
         {{\"s\":\"s~2\",\"i\":\"token:a\",\"t\":{now}}}\n\
         {{\"s\":\"pool\\u0000s\",\"i\":\"token:a\",\"t\":{now}}}\n\
         {{\"s\":\"pool\\u0000t\",\"i\":\"token:a\",\"t\":{now}}}\n\
         {{\"s\":\"pool\\u0000t\",\"t\":0}}\n\
         {{\"s\":\"pool\\u0000u\",\"p\":3,\"i\":\"token:a\",\"t\":{now}}}\n"
    );
    std::fs::write(&path, old).unwrap();
    for _ in 0..2 {
        let (mut index, _) = open(&path);
        let mut known: Vec<_> = index.known.keys().cloned().collect();
        known.sort();
        assert_eq!(known, ["pool\0s".into(), "s~2".into(), in_pool("pool", "s")]);
        index.rewrite().unwrap();
    }
}

#[test]
fn owners_in_use_do_not_expire() {
    let directory = tempfile::tempdir().unwrap();
    let (mut index, _) = open(&directory.path().join("owners"));
    let now = seconds();
    for used in [0, 60, 120, 180] {
        index.write([own("a", "x")].into_iter(), now + used);
    }
    assert!(index.expire(now + 270).is_empty(), "the owner is kept for 100 seconds after its last use");
}

#[test]
fn no_identity_loses_sessions_because_another_has_more() {
    let directory = tempfile::tempdir().unwrap();
    let (mut index, _) = open(&directory.path().join("owners"));
    let now = seconds();
    index.write([own("old", "alice")].into_iter(), now - 50);
    for entry in 0..100 {
        index.write([own(&format!("m{entry}"), "mallory")].into_iter(), now - 40 + entry / 4);
    }
    let each = OwnedName::from("m00").record_bytes();
    index.limits = (60 * each, usize::MAX);
    let gone = index.shrink();
    assert!(index.known.len() <= 60 && index.known.contains_key(&"old".into()), "{gone:?}");
    assert!(
        gone.contains(&"m0".into()) && index.known.contains_key(&"m99".into()),
        "the oldest are removed first"
    );
    check_bytes(&index);
    // Long names use up the limit too.
    index.write([own(&"x".repeat(4_000), "mallory")].into_iter(), now);
    let before = index.known.values().filter(|owned| &*owned.identity == "alice").count();
    index.limits = (4_000, usize::MAX);
    index.shrink();
    assert!(index.bytes <= 4_000);
    assert_eq!(index.known.values().filter(|owned| &*owned.identity == "alice").count(), before);
}

#[track_caller]
fn check_bytes(index: &Index) {
    assert_eq!(index.bytes, index.known.keys().map(OwnedName::record_bytes).sum::<usize>());
    assert_eq!(index.bytes, index.bytes_of.values().sum::<usize>());
}

#[test]
fn an_identity_beyond_its_share_forgets_its_own_oldest_sessions() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("owners");
    let (mut index, _) = open_with(&path, 1 << 20);
    let now = seconds();
    index.write([own("old", "alice")].into_iter(), now - 50);
    index.write([own("s", "bob"), own_in_pool("s", "mallory")].into_iter(), now - 49);
    for entry in 0..1_000 {
        index.write([own(&format!("m{entry}"), "mallory")].into_iter(), now - 40 + entry / 30);
        index.shrink();
        assert!(index.bytes_of["mallory"] <= (1 << 20) / 16);
    }
    check_bytes(&index);
    assert!(index.known.contains_key(&"old".into()) && index.known.contains_key(&"m999".into()));
    assert!(index.known.contains_key(&in_pool("pool", "s")) && !index.known.contains_key(&"m0".into()));
    // The file still has a line for each owner. At the next start, owners over the limit are left out.
    drop(index);
    let (index, _) = open_with(&path, 1 << 20);
    check_bytes(&index);
    assert!(index.bytes_of["mallory"] <= (1 << 20) / 16 && index.known.contains_key(&"old".into()));
    drop(index);
    let (index, learned) = open_with(&path, 1 << 10);
    check_bytes(&index);
    assert!(learned.len() <= 4, "{learned:?}");
}

#[test]
fn records_that_have_to_stay_do_not_keep_others() {
    let directory = tempfile::tempdir().unwrap();
    let (mut index, _) = open(&directory.path().join("owners"));
    let now = seconds();
    for entry in 0..200 {
        let name = format!("s{entry}");
        index.write([own(&name, "bob"), own_in_pool(&name, "mallory")].into_iter(), now - 50);
    }
    index.write((0..200).map(|entry| own(&format!("m{entry}"), "mallory")), now);
    index.limits = (usize::MAX, index.bytes_of["bob"] * 11 / 10);
    let gone = index.shrink();
    assert!(gone.len() >= 150 && gone.iter().all(|name| name.pool.is_none()), "{}", gone.len());
    index.limits = (usize::MAX, 0);
    index.shrink();
    index.shrink();
    assert_eq!((index.known.len(), index.bytes_of.len()), (0, 0));
}

#[test]
fn entries_are_written_once_the_disk_works_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("owners");
    let (mut index, _) = open(&path);
    let now = seconds();
    index.fall_behind(&std::io::Error::other("full"));
    index.write([own("a", "x")].into_iter(), now);
    assert_eq!(index.file.lines(), 0);
    index.behind = index.behind.and_then(|since| since.checked_sub(WRITE_RETRY_DELAY));
    index.write([own("b", "x")].into_iter(), now);
    assert!(index.behind.is_none());
    drop(index);
    assert_eq!(open(&path).1, pairs(&[("a", "x"), ("b", "x")]));
}

#[test]
fn missing_entries_are_appended_when_there_is_little_room() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("owners");
    let (mut index, _) = open(&path);
    let now = seconds();
    let many = |from: usize| (from..from + 100).map(|number| own(&format!("s{number:03}"), "x"));
    index.write(many(0), now);
    // There is no room for a second copy of the file, or for any further entry.
    std::fs::create_dir(path.with_extension("new")).unwrap();
    let length = std::fs::metadata(&path).unwrap().len();
    index.file.room = Some(length);
    index.write(many(100), now);
    assert_eq!((index.file.lines(), index.missing.len(), index.behind.is_some()), (100, 100, true));
    // At first there is room for half of the entries, and later for all.
    index.file.room = Some(length + length / 2);
    index.catch_up();
    let written = index.file.lines() - 100;
    assert!((45..=50).contains(&written), "{written}");
    assert_eq!((index.missing.len(), index.behind.is_some()), (100 - written, true));
    index.file.room = None;
    index.write([OwnerEntry::Delete { session: "s150".into() }].into_iter(), now);
    assert_eq!(
        index.missing.len(),
        100 - written + usize::from(written > 50),
        "the disk is left alone for a while"
    );
    let (owner_writer, thread) = started(index);
    drop(owner_writer);
    thread.join().unwrap();
    assert_eq!(open(&path).1.len(), 199);
}

fn started(index: Index) -> (OwnerWriter, JoinHandle<()>) {
    let poll = mio::Poll::new().unwrap();
    let waker = Arc::new(Waker::new(poll.registry(), mio::Token(0)).unwrap());
    start(index, waker).unwrap()
}

#[test]
fn entries_are_written_again_without_a_new_session() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("owners");
    let (mut index, _) = open(&path);
    index.fall_behind(&std::io::Error::other("full"));
    index.write([own("a", "x")].into_iter(), seconds());
    assert!(!std::fs::read_to_string(&path).unwrap().contains("\"a\""));
    index.behind = index.behind.and_then(|since| since.checked_sub(WRITE_RETRY_DELAY));
    let (owner_writer, thread) = started(index);
    while !std::fs::read_to_string(&path).unwrap().contains("\"a\"") {
        std::thread::yield_now();
    }
    drop(owner_writer);
    thread.join().unwrap();
}

#[test]
fn entries_that_failed_are_written_at_the_end_at_the_latest() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("owners");
    let (mut index, _) = open(&path);
    index.fall_behind(&std::io::Error::other("full"));
    let (mut owner_writer, thread) = started(index);
    let many = 3 * MAX_PENDING_ENTRIES as u64;
    for number in 1..=many {
        owner_writer.put(number, own(&format!("s{number}"), "x"));
    }
    drop(owner_writer);
    thread.join().unwrap();
    assert_eq!(open(&path).1.len(), many as usize);
}

#[test]
fn the_loop_learns_which_entries_are_on_disk() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("owners");
    let (mut owner_writer, thread) = started(open(&path).0);
    let many = 3 * MAX_PENDING_ENTRIES as u64;
    for number in 1..=many {
        owner_writer.put(number, own(&format!("s{number}"), "x"));
    }
    let mut kept = 0;
    while kept < many {
        for told in owner_writer.take_events().unwrap() {
            let OwnerStoreEvent::Kept(number) = told else { panic!("{told:?}") };
            assert!(number > kept);
            kept = number;
        }
        std::thread::yield_now();
    }
    drop(owner_writer);
    thread.join().unwrap();
    assert_eq!(open(&path).1.len(), many as usize);
}
