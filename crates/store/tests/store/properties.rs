//! Invariants for all sequences of operations.

use std::collections::BTreeMap;

use narrows_store::{Claim, Store, Turn};
use proptest::prelude::*;

use crate::{lists, messages, new, new_in, replay, turn};

#[derive(Clone, Debug)]
enum Step {
    Append(usize),
    Reopen(usize),
    /// Index of the last turn to cover.
    Summarize(usize, prop::sample::Index),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (0..5usize).prop_map(Step::Append),
        2 => (0..5usize).prop_map(Step::Reopen),
        1 => (0..5usize, any::<prop::sample::Index>()).prop_map(|(session, at)| Step::Summarize(session, at)),
    ];
    prop::collection::vec(step, 0..60)
}

#[derive(Default)]
struct Model {
    turns: Vec<Turn>,
    /// Number of turns that the newest summary covers, and the summary.
    summary: (usize, Option<Turn>),
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(work)
}

async fn play(store: &Store, steps: Vec<Step>) -> Result<(), TestCaseError> {
    let mut claims: BTreeMap<usize, Claim> = BTreeMap::new();
    let mut models: BTreeMap<usize, Model> = BTreeMap::new();
    for session in 0..5 {
        claims.insert(session, store.create(new(&session.to_string())).await.unwrap());
        models.insert(session, Model::default());
    }
    for (count, step) in steps.into_iter().enumerate() {
        match step {
            Step::Append(session) => {
                let turn = turn(&count.to_string());
                let number = store.append(&claims[&session], turn.clone()).await.unwrap();
                let turns = &mut models.get_mut(&session).unwrap().turns;
                turns.push(turn);
                prop_assert_eq!(number, turns.len() as u64);
            }
            Step::Reopen(session) => {
                drop(claims.remove(&session));
                let (claim, record) = store.claim(&session.to_string()).await.unwrap();
                prop_assert_eq!(record.turns, models[&session].turns.len() as u64);
                claims.insert(session, claim);
            }
            Step::Summarize(session, at) => {
                let model = models.get_mut(&session).unwrap();
                let covered = model.summary.0.max(1);
                if covered <= model.turns.len() {
                    let through = covered + at.index(model.turns.len() - covered + 1);
                    let mut summary = turn(&count.to_string());
                    summary.replay.clear();
                    store.replace_history(&claims[&session], through as u64, summary.clone()).await.unwrap();
                    model.summary = (through, Some(summary));
                }
            }
        }
    }
    for (session, model) in &models {
        let history = store.history(&session.to_string()).await.unwrap();
        prop_assert_eq!(replay(&history), replay(&model.turns));
        let mut expected: Vec<Turn> = model.summary.1.iter().cloned().collect();
        expected.extend_from_slice(&model.turns[model.summary.0..]);
        prop_assert_eq!(messages(&history), messages(&expected));
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn histories_grow_in_order_with_any_interleaving(steps in steps()) {
        run(play(&Store::in_memory(), steps))?;
    }

    #[test]
    fn pages_have_every_session_once(
        sessions in prop::collection::btree_map("[a-zé/.]{1,8}", 0..3usize, 0..40),
        used in prop::collection::vec(any::<prop::sample::Index>(), 0..10),
        limit in 1..12usize,
    ) {
        run(async {
            let store = Store::in_memory();
            let mut claims = Vec::new();
            for (id, cwd) in &sessions {
                claims.push(store.create(new_in(id, &cwd.to_string())).await.unwrap());
            }
            for index in used.iter().filter(|_| !claims.is_empty()) {
                store.append(index.get(&claims), turn("x")).await.unwrap();
            }
            let mut found = lists::all(&store, None, limit).await;
            let whole = store.list(None, None, 1000).await.unwrap().sessions;
            prop_assert!(whole.is_sorted_by(|a, b| (a.updated, &a.id) > (b.updated, &b.id)));
            prop_assert_eq!(&found, &whole.into_iter().map(|record| record.id).collect::<Vec<_>>());
            found.sort();
            prop_assert_eq!(found, sessions.keys().cloned().collect::<Vec<_>>());
            for cwd in 0..3 {
                let mut found = lists::all(&store, Some(&cwd.to_string()), limit).await;
                found.sort();
                let there = sessions.iter().filter(|(_, place)| **place == cwd).map(|(id, _)| id.clone());
                prop_assert_eq!(found, there.collect::<Vec<_>>());
            }
            Ok(())
        })?;
    }
}

proptest! {
    // Few cases: each waits for the disk many times.
    #![proptest_config(ProptestConfig::with_cases(10))]

    #[test]
    fn the_disk_keeps_order_too(steps in steps()) {
        let (store, _place) = crate::on_disk();
        run(play(&store, steps))?;
    }
}
