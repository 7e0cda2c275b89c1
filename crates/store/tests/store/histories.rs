//! Tests of histories: the input of the model and the replay for the client.

use narrows_store::{Store, StoreError, Turn};

use crate::{messages, new, on_disk, replay, turn};

#[tokio::test]
async fn turns_come_back_in_order_and_unchanged() {
    let (disk, place) = on_disk();
    let odd = Turn::new(
        vec![String::new(), "{\"a\": \"\\u0000 \n\u{0} é 🦀\"}".into(), "not json".into()],
        Vec::new(),
    );
    for store in [Store::in_memory(), disk] {
        let claim = store.create(new("a")).await.unwrap();
        assert_eq!(store.append(&claim, turn("1")).await.unwrap(), 1);
        assert_eq!(store.append(&claim, odd.clone()).await.unwrap(), 2);
        assert_eq!(store.append(&claim, Turn { number: 77, ..turn("3") }).await.unwrap(), 3);
        let expected = [
            Turn { number: 1, ..turn("1") },
            Turn { number: 2, ..odd.clone() },
            Turn { number: 3, ..turn("3") },
        ];
        assert_eq!(store.history("a").await.unwrap(), expected);
        assert_eq!(store.record("a").await.unwrap().unwrap().turns, 3);
    }
    let again = Store::new(place.path().to_owned());
    assert_eq!(messages(&again.history("a").await.unwrap()).len(), 7);
}

#[tokio::test]
async fn a_turn_can_set_the_title() {
    let (disk, _place) = on_disk();
    for store in [Store::in_memory(), disk] {
        let claim = store.create(new("a")).await.unwrap();
        for (text, title, expected) in [
            ("1", None, None),
            ("2", Some("first"), Some("first")),
            ("3", None, Some("first")),
            ("4", Some(""), Some("")),
        ] {
            store.append_called(&claim, turn(text).into(), title.map(str::to_owned)).await.unwrap();
            let record = store.record("a").await.unwrap().unwrap();
            assert_eq!(record.title.as_deref(), expected, "{text}");
        }
        assert_eq!(store.history("a").await.unwrap().len(), 4);
        store.delete("a").await.unwrap();
        let lost = store.append_called(&claim, turn("5").into(), Some("late".to_owned())).await;
        assert_eq!(lost, Err(StoreError::NotFound));
    }
}

#[tokio::test]
async fn a_summary_replaces_messages_but_not_the_replay() {
    let (disk, _place) = on_disk();
    for store in [Store::in_memory(), disk] {
        let claim = store.create(new("a")).await.unwrap();
        let refused = |through, least, last| Err(StoreError::BadTurn { through, least, last });
        assert_eq!(store.replace_history(&claim, 1, turn("s")).await, refused(1, 1, 0));
        for text in ["1", "2", "3", "4"] {
            store.append(&claim, turn(text)).await.unwrap();
        }
        assert_eq!(store.replace_history(&claim, 0, turn("s")).await, refused(0, 1, 4));
        assert_eq!(store.replace_history(&claim, 5, turn("s")).await, refused(5, 1, 4));
        assert_eq!(store.replace_history(&claim, u64::MAX, turn("s")).await, refused(u64::MAX, 1, 4));

        store.replace_history(&claim, 2, turn("s")).await.unwrap();
        let history = store.history("a").await.unwrap();
        assert_eq!(history.iter().map(|turn| turn.number).collect::<Vec<_>>(), [1, 2, 2, 3, 4]);
        assert_eq!(messages(&history), ["m s", "n s", "m 3", "n 3", "m 4", "n 4"]);
        assert_eq!(replay(&history), ["r 1", "r 2", "r s", "r 3", "r 4"]);

        assert_eq!(store.replace_history(&claim, 1, turn("t")).await, refused(1, 2, 4));
        store.replace_history(&claim, 2, turn("t")).await.unwrap();
        assert_eq!(messages(&store.history("a").await.unwrap()), ["m t", "n t", "m 3", "n 3", "m 4", "n 4"]);

        store.replace_history(&claim, 4, turn("u")).await.unwrap();
        assert_eq!(store.append(&claim, turn("5")).await.unwrap(), 5);
        let history = store.history("a").await.unwrap();
        assert_eq!(messages(&history), ["m u", "n u", "m 5", "n 5"]);
        assert_eq!(replay(&history), ["r 1", "r 2", "r t", "r 3", "r 4", "r u", "r 5"]);
        assert_eq!(store.record("a").await.unwrap().unwrap().turns, 5);
    }
}

#[tokio::test]
async fn a_cancelled_job_keeps_its_claim_until_it_ends() {
    let (store, place) = on_disk();
    let claim = store.create(new("a")).await.unwrap();
    for _ in 0..20 {
        // Polled once: the job is queued, and its result is not awaited.
        tokio::select! {
            biased;
            result = store.append(&claim, turn("x")) => assert!(result.is_ok()),
            () = std::future::ready(()) => {}
        }
    }
    drop(claim);
    let (_claim, record) = store.claim("a").await.unwrap();
    assert_eq!(record.turns, 20);
    assert_eq!(Store::new(place.path().to_owned()).history("a").await.unwrap().len(), 20);
}

#[tokio::test(start_paused = true)]
async fn a_store_in_memory_lets_no_time_pass() {
    let start = tokio::time::Instant::now();
    // A paused clock would jump to this timer as soon as all tasks wait.
    let timer = tokio::spawn(tokio::time::sleep_until(start + std::time::Duration::from_secs(60))); // sleep: paused
    let store = Store::in_memory();
    let claim = store.create(new("a")).await.unwrap();
    for _ in 0..100 {
        store.append(&claim, turn("x")).await.unwrap();
    }
    assert_eq!(start.elapsed(), std::time::Duration::ZERO);
    timer.abort();
}
