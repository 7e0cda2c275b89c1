//! Tests of listing sessions.

use narrows_store::{Change, Page, Store, StoreError};

use crate::{new, new_in, on_disk, turn};

fn ids(page: &Page) -> Vec<&str> {
    page.sessions.iter().map(|record| record.id.as_str()).collect()
}

/// Returns the ids on all pages of `limit` sessions.
pub(crate) async fn all(store: &Store, cwd: Option<&str>, limit: usize) -> Vec<String> {
    let mut found = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let page = store.list(cwd, cursor.as_deref(), limit).await.unwrap();
        assert!(page.sessions.len() <= limit);
        found.extend(page.sessions.into_iter().map(|record| record.id));
        cursor = page.next;
        if cursor.is_none() {
            return found;
        }
    }
}

/// Waits until the clock shows another millisecond, so that the next session is newer.
fn tick() {
    let now = narrows_store::Timestamp::now();
    while narrows_store::Timestamp::now() <= now {
        std::thread::yield_now();
    }
}

#[tokio::test]
async fn the_session_used_last_comes_first() {
    let (disk, _place) = on_disk();
    for store in [Store::in_memory(), disk] {
        assert_eq!(store.list(None, None, 10).await.unwrap(), Page::default());
        let mut claims = Vec::new();
        for id in ["a", "b", "c"] {
            claims.push(store.create(new(id)).await.unwrap());
            tick();
        }
        assert_eq!(ids(&store.list(None, None, 10).await.unwrap()), ["c", "b", "a"]);
        store.append(&claims[0], turn("1")).await.unwrap();
        assert_eq!(ids(&store.list(None, None, 10).await.unwrap()), ["a", "c", "b"]);
        tick();
        store.set(&claims[1], Change::Title(Some("T".into()))).await.unwrap();
        let page = store.list(None, None, 10).await.unwrap();
        assert_eq!(ids(&page), ["a", "c", "b"]);
        assert_eq!(page.sessions[2].title.as_deref(), Some("T"));
        assert_eq!(page.next, None);
        assert_eq!(ids(&store.list(None, None, 3).await.unwrap()).len(), 3);
        assert_eq!(store.list(None, None, 3).await.unwrap().next, None, "no page is empty");
        assert_eq!(ids(&store.list(None, None, 0).await.unwrap()), ["a"]);
        assert_eq!(store.list(None, None, usize::MAX).await.unwrap().sessions.len(), 3);
    }
}

#[tokio::test]
async fn only_sessions_in_exactly_the_directory_are_listed() {
    let store = Store::in_memory();
    for (id, cwd) in [("1", "/a"), ("2", "/a/"), ("3", "/a/b"), ("4", "/A"), ("5", "/a"), ("6", "/%")] {
        store.create(new_in(id, cwd)).await.unwrap();
        tick();
    }
    assert_eq!(all(&store, Some("/a"), 1).await, ["5", "1"]);
    assert_eq!(all(&store, Some("/%"), 1).await, ["6"]);
    assert_eq!(all(&store, Some(""), 1).await, [""; 0]);
}

#[tokio::test]
async fn a_cursor_survives_changes_of_the_list() {
    let store = Store::in_memory();
    for id in ["a", "b", "c", "d"] {
        store.create(new(id)).await.unwrap();
        tick();
    }
    let first = store.list(None, None, 2).await.unwrap();
    assert_eq!(ids(&first), ["d", "c"]);
    store.create(new("e")).await.unwrap();
    store.delete("c").await.unwrap();
    let second = store.list(None, first.next.as_deref(), 2).await.unwrap();
    assert_eq!(ids(&second), ["b", "a"]);
    assert_eq!(second.next, None);
}

#[tokio::test]
async fn an_invalid_cursor_is_refused() {
    let store = Store::in_memory();
    for cursor in ["", "x", "0", "'; DROP TABLE sessions", "0000000000000001", "é", "000000000000000161 "] {
        assert_eq!(store.list(None, Some(cursor), 5).await.unwrap_err(), StoreError::BadCursor, "{cursor}");
    }
    assert_eq!(store.list(None, Some("000000000000000161"), 5).await.unwrap(), Page::default());
}
