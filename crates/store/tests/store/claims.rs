//! Tests of creating, opening, forking, changing and deleting sessions.

use std::fs;

use narrows_store::{Change, Store, StoreError, Timestamp};

use crate::{messages, new, on_disk, replay, turn};

const BY_US: StoreError = StoreError::InUse { by_us: true };
const BY_OTHERS: StoreError = StoreError::InUse { by_us: false };

#[tokio::test]
async fn a_session_is_opened_as_it_was_created() {
    let (disk, _place) = on_disk();
    for store in [Store::in_memory(), disk] {
        let before = Timestamp::now();
        let claim = store.create(new("a")).await.unwrap();
        assert_eq!(claim.id(), "a");
        let record = store.record("a").await.unwrap().unwrap();
        assert_eq!(
            (record.id.as_str(), record.cwd.as_str(), &*record.roots),
            ("a", "/a", &["/r".into()][..])
        );
        assert_eq!((record.title.as_deref(), record.settings.as_str(), record.turns), (None, "{}", 0));
        assert!(before <= record.created && record.created <= Timestamp::now());
        assert_eq!(record.updated, record.created);
        assert_eq!(record.updated_at(), record.updated.to_string());
        assert_eq!(store.history("a").await.unwrap(), []);
        assert_eq!(store.record("b").await.unwrap(), None);
        assert_eq!(store.history("b").await.unwrap_err(), StoreError::NotFound);
    }
}

#[tokio::test]
async fn ids_are_unique_and_bounded() {
    let (disk, place) = on_disk();
    for store in [Store::in_memory(), disk] {
        let claim = store.create(new("a")).await.unwrap();
        assert_eq!(store.create(new("a")).await.unwrap_err(), StoreError::Exists);
        drop(claim);
        assert_eq!(store.create(new("a")).await.unwrap_err(), StoreError::Exists);
        assert_eq!(store.create(new("")).await.unwrap_err(), StoreError::BadId);
        assert_eq!(store.create(new(&"x".repeat(65))).await.unwrap_err(), StoreError::BadId);
        let strange = format!("../..\0{}", "é".repeat(29));
        store.create(new(&strange)).await.unwrap();
        assert_eq!(store.claim(&strange).await.unwrap().1.id, strange);
        assert_eq!(store.claim(&"x".repeat(1 << 20)).await.unwrap_err(), StoreError::NotFound);
    }
    assert!(fs::read_dir(place.path().join("locks")).unwrap().next().is_none(), "no lock is left");
}

#[tokio::test]
async fn a_session_can_be_open_only_once() {
    let (disk, place) = on_disk();
    for store in [Store::in_memory(), disk.clone()] {
        let claim = store.create(new("a")).await.unwrap();
        assert_eq!(store.claim("a").await.unwrap_err(), BY_US);
        assert_eq!(store.clone().claim("a").await.unwrap_err(), BY_US);
        drop(claim);
        let (_claim, record) = store.claim("a").await.unwrap();
        assert_eq!(record.id, "a");
        assert_eq!(store.claim("a").await.unwrap_err(), BY_US);
        assert_eq!(store.claim("b").await.unwrap_err(), StoreError::NotFound);
    }
    let other = Store::new(place.path().to_owned());
    let (claim, _) = other.claim("a").await.unwrap();
    assert_eq!(disk.claim("a").await.unwrap_err(), BY_OTHERS);
    assert_eq!(disk.delete("a").await.unwrap_err(), BY_OTHERS);
    assert!(disk.record("a").await.unwrap().is_some());
    drop(claim);
    disk.claim("a").await.unwrap();
}

#[tokio::test]
async fn a_claim_outlives_its_store_and_is_useless_for_others() {
    let (store, place) = on_disk();
    let claim = store.create(new("a")).await.unwrap();
    drop(store);
    let other = Store::new(place.path().to_owned());
    assert_eq!(other.claim("a").await.unwrap_err(), BY_OTHERS);
    assert_eq!(other.append(&claim, turn("1")).await.unwrap_err(), StoreError::NotClaimed);
    assert_eq!(other.replace_history(&claim, 1, turn("1")).await.unwrap_err(), StoreError::NotClaimed);
    assert_eq!(other.set(&claim, Change::Title(None)).await.unwrap_err(), StoreError::NotClaimed);
    drop(claim);
    other.claim("a").await.unwrap();
}

#[tokio::test]
async fn title_settings_and_directories_can_be_changed() {
    let (disk, _place) = on_disk();
    for store in [Store::in_memory(), disk] {
        let claim = store.create(new("a")).await.unwrap();
        let mut expected = store.record("a").await.unwrap().unwrap();
        store.set(&claim, Change::Title(Some("T".into()))).await.unwrap();
        expected.title = Some("T".into());
        assert_eq!(store.record("a").await.unwrap().as_ref(), Some(&expected));
        store.set(&claim, Change::Settings("[1]".into())).await.unwrap();
        expected.settings = "[1]".into();
        let (cwd, roots) = ("/b".to_owned(), vec!["/c\"".to_owned(), String::new()]);
        store.set(&claim, Change::Place { cwd: cwd.clone(), roots: roots.clone() }).await.unwrap();
        (expected.cwd, expected.roots) = (cwd, roots);
        assert_eq!(store.record("a").await.unwrap().as_ref(), Some(&expected));
        store.set(&claim, Change::Title(None)).await.unwrap();
        expected.title = None;
        drop(claim);
        assert_eq!(store.claim("a").await.unwrap().1, expected);
    }
}

#[tokio::test]
async fn a_deleted_session_is_gone_even_while_open() {
    let (disk, place) = on_disk();
    for store in [Store::in_memory(), disk] {
        let claim = store.create(new("a")).await.unwrap();
        store.append(&claim, turn("1")).await.unwrap();
        store.replace_history(&claim, 1, turn("s")).await.unwrap();
        assert!(store.delete("a").await.unwrap());
        assert!(!store.delete("a").await.unwrap());
        assert_eq!(store.append(&claim, turn("2")).await.unwrap_err(), StoreError::NotFound);
        assert_eq!(store.replace_history(&claim, 1, turn("s")).await.unwrap_err(), StoreError::NotFound);
        assert_eq!(store.set(&claim, Change::Title(None)).await.unwrap_err(), StoreError::NotFound);
        assert_eq!(store.claim("a").await.unwrap_err(), StoreError::NotFound);
        drop(claim);
        // A new session with the same id does not inherit the old history.
        drop(store.create(new("a")).await.unwrap());
        assert_eq!(store.history("a").await.unwrap(), []);
        assert!(store.delete("a").await.unwrap());
    }
    assert!(fs::read_dir(place.path().join("locks")).unwrap().next().is_none(), "no lock is left");
}

#[tokio::test]
async fn a_fork_has_the_history_and_its_own_future() {
    let (disk, place) = on_disk();
    for store in [Store::in_memory(), disk.clone()] {
        let claim = store.create(new("a")).await.unwrap();
        for text in ["1", "2", "3"] {
            store.append(&claim, turn(text)).await.unwrap();
        }
        store.replace_history(&claim, 2, turn("s")).await.unwrap();
        store.set(&claim, Change::Title(Some("T".into()))).await.unwrap();
        let mut copy = new("b");
        copy.cwd = "/other".into();
        let fork = store.fork("a", copy).await.unwrap();
        assert_eq!(store.history("b").await.unwrap(), store.history("a").await.unwrap());
        let record = store.record("b").await.unwrap().unwrap();
        assert_eq!((record.cwd.as_str(), record.title.as_deref(), record.turns), ("/other", Some("T"), 3));
        assert_eq!(store.append(&fork, turn("4")).await.unwrap(), 4);
        assert_eq!(store.append(&claim, turn("5")).await.unwrap(), 4);
        assert_eq!(messages(&store.history("a").await.unwrap())[4..], ["m 5", "n 5"]);
        let forked = store.history("b").await.unwrap();
        assert_eq!(replay(&forked), ["r 1", "r 2", "r s", "r 3", "r 4"]);
        assert_eq!(store.fork("a", new("b")).await.unwrap_err(), StoreError::Exists);
        assert_eq!(store.fork("x", new("c")).await.unwrap_err(), StoreError::NotFound);
        assert_eq!(store.record("c").await.unwrap(), None);
        store.create(new("c")).await.unwrap();
        assert!(store.delete("a").await.unwrap());
        assert_eq!(store.history("b").await.unwrap(), forked, "a fork does not need its source");
    }
    let elsewhere = Store::new(place.path().to_owned());
    let (_claim, _) = disk.claim("b").await.unwrap();
    elsewhere.fork("b", new("d")).await.unwrap();
    assert_eq!(disk.record("d").await.unwrap().unwrap().turns, 4);
}

#[tokio::test]
async fn two_stores_write_at_the_same_time() {
    let (one, place) = on_disk();
    let two = Store::new(place.path().to_owned());
    let claim = one.create(new("a")).await.unwrap();
    one.append(&claim, turn("0")).await.unwrap();
    let appending = async {
        for _ in 0..100 {
            one.append(&claim, turn("x")).await.unwrap();
        }
    };
    let forking = async {
        for count in 0..50 {
            let id = format!("fork {count}");
            let claim = two.fork("a", new(&id)).await.unwrap();
            two.replace_history(&claim, 1, turn("s")).await.unwrap();
            let history = two.history(&id).await.unwrap();
            assert_eq!(history.last().unwrap().number, two.record(&id).await.unwrap().unwrap().turns);
        }
    };
    tokio::join!(appending, forking);
    assert_eq!(two.record("a").await.unwrap().unwrap().turns, 101);
}
