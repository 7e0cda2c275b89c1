//! The plans of an agent: whole when they are made, then only what changes.

use std::collections::HashMap;

use serde_json::Value;

use crate::terminal::line;

/// How many plans are followed.
const PLANS: usize = 16;

/// How many steps of a plan are followed.
const STEPS: usize = 200;

/// How many steps are shown at once.
const SHOWN: usize = 12;

/// The plans that were told, by their ids; version 1 has one without.
#[derive(Debug, Default)]
pub(super) struct Plans(HashMap<String, Vec<Step>>);

/// A step of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Step {
    content: String,
    status: String,
}

impl Step {
    fn read(entry: &Value) -> Option<Self> {
        let content = entry["content"].as_str()?.to_owned();
        Some(Self { content, status: entry["status"].as_str().unwrap_or_default().to_owned() })
    }

    fn is_done(&self) -> bool {
        self.status == "completed"
    }

    fn render(&self) -> String {
        let mark = match self.status.as_str() {
            "completed" => "[x]",
            "in_progress" => "[>]",
            "cancelled" => "[-]",
            _ => "[ ]",
        };
        format!("{mark} {}", line(&self.content))
    }
}

impl Plans {
    /// What is to be shown of an update, if it is about a plan.
    pub(super) fn update(&mut self, update: &Value) -> Vec<String> {
        let (id, entries) = match update["sessionUpdate"].as_str() {
            Some("plan") => ("", &update["entries"]),
            Some("plan_update") => {
                (update["plan"]["planId"].as_str().unwrap_or_default(), &update["plan"]["entries"])
            }
            Some("plan_removed") => {
                let id = update["planId"].as_str().unwrap_or_default();
                return self.0.remove(id).map(|_| "the plan is dropped".to_owned()).into_iter().collect();
            }
            _ => return Vec::new(),
        };
        let Some(entries) = entries.as_array() else { return Vec::new() };
        let steps: Vec<Step> = entries.iter().take(STEPS).filter_map(Step::read).collect();
        let before = self.0.get(id).cloned().unwrap_or_default();
        if steps == before || (self.0.len() >= PLANS && !self.0.contains_key(id)) {
            return Vec::new();
        }
        let lines = told(&before, &steps);
        self.0.insert(id.to_owned(), steps);
        lines
    }
}

/// The steps that are new or stand otherwise than before, behind how far the plan has come.
fn told(before: &[Step], now: &[Step]) -> Vec<String> {
    let done = now.iter().filter(|step| step.is_done()).count();
    let heading = match before.is_empty() {
        true => format!("plan: {done} of {} done", now.len()),
        false => format!("plan: {done} of {} done, now", now.len()),
    };
    let changed: Vec<&Step> = now.iter().filter(|step| !before.contains(step)).collect();
    let more = changed.len().saturating_sub(SHOWN);
    let mut lines = vec![heading];
    lines.extend(changed.into_iter().take(SHOWN).map(|step| format!("  {}", step.render())));
    if more > 0 {
        lines.push(format!("  … {more} more"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn plan(steps: &[(&str, &str)]) -> Value {
        let entries: Vec<Value> = steps
            .iter()
            .map(|(content, status)| json!({"content": content, "priority": "medium", "status": status}))
            .collect();
        json!({"sessionUpdate": "plan", "entries": entries})
    }

    #[test]
    fn a_plan_is_shown_whole_and_then_by_what_changes() {
        let mut plans = Plans::default();
        let mut check = |steps: &[(&str, &str)], expected: &[&str]| {
            assert_eq!(plans.update(&plan(steps)), expected, "{steps:?}");
        };
        check(&[], &[]);
        check(
            &[("look", "in_progress"), ("do\u{1b}", "pending")],
            &["plan: 0 of 2 done", "  [>] look", "  [ ] do\\u{1b}"],
        );
        check(&[("look", "in_progress"), ("do\u{1b}", "pending")], &[]);
        check(
            &[("look", "completed"), ("do\u{1b}", "pending"), ("test", "pending")],
            &["plan: 1 of 3 done, now", "  [x] look", "  [ ] test"],
        );
        check(&[("look", "completed"), ("test", "pending")], &["plan: 1 of 2 done, now"]);
        let many = [("x", "pending"); 20];
        let mut fresh = Plans::default();
        let shown = fresh.update(&plan(&many));
        assert_eq!((shown.len(), shown.last().unwrap().as_str()), (SHOWN + 2, "  … 8 more"));
    }

    #[test]
    fn plans_of_version_2_have_ids_and_can_be_dropped() {
        let mut plans = Plans::default();
        let update = |id: &str| json!({"sessionUpdate": "plan_update", "plan": {"type": "items", "planId": id, "entries": [{"content": "a"}]}});
        assert_eq!(plans.update(&update("1")).len(), 2);
        assert_eq!(plans.update(&update("2")).len(), 2);
        assert_eq!(plans.update(&update("1")), [""; 0]);
        let removed = json!({"sessionUpdate": "plan_removed", "planId": "1"});
        assert_eq!(plans.update(&removed), ["the plan is dropped"]);
        assert_eq!(plans.update(&removed), [""; 0]);
    }

    proptest! {
        #[test]
        fn whatever_is_planned_is_shown_in_few_lines(
            plans in vec(vec(("[ab]{0,3}", "(pending|completed|in_progress|x)?"), 0..30), 1..6),
        ) {
            let mut shown = Plans::default();
            for steps in plans {
                let steps: Vec<(&str, &str)> = steps.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
                prop_assert!(shown.update(&plan(&steps)).len() <= SHOWN + 2);
                prop_assert!(shown.update(&plan(&steps)).is_empty());
            }
        }
    }
}
