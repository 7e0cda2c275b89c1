//! The plans of an agent: shown completely at first, then only their changes.

use std::collections::HashMap;

use serde_json::Value;

use crate::terminal::line;

const MAX_PLANS: usize = 16;

const MAX_STEPS: usize = 200;

const MAX_SHOWN_STEPS: usize = 12;

/// The plans by their ids. Version 1 of the protocol has one plan, without an id.
#[derive(Debug, Default)]
pub(super) struct Plans(HashMap<String, Vec<PlanStep>>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct PlanStep {
    content: String,
    status: String,
}

impl PlanStep {
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
    pub(super) fn update(&mut self, update: &Value) -> Vec<String> {
        let (id, entries) = match update["sessionUpdate"].as_str() {
            Some("plan") => ("", &update["entries"]),
            Some("plan_update") => {
                (update["plan"]["planId"].as_str().unwrap_or_default(), &update["plan"]["entries"])
            }
            Some("plan_removed") => {
                let id = update["planId"].as_str().unwrap_or_default();
                return self.0.remove(id).map(|_| "plan dropped".to_owned()).into_iter().collect();
            }
            _ => return Vec::new(),
        };
        let Some(entries) = entries.as_array() else { return Vec::new() };
        let steps: Vec<PlanStep> = entries.iter().take(MAX_STEPS).filter_map(PlanStep::read).collect();
        let before = self.0.get(id).cloned().unwrap_or_default();
        if steps == before || (self.0.len() >= MAX_PLANS && !self.0.contains_key(id)) {
            return Vec::new();
        }
        let lines = changed_steps(&before, &steps);
        self.0.insert(id.to_owned(), steps);
        lines
    }
}

/// Returns the new and changed steps, after a line with the progress of the plan.
fn changed_steps(before: &[PlanStep], now: &[PlanStep]) -> Vec<String> {
    let done = now.iter().filter(|step| step.is_done()).count();
    let heading = match before.is_empty() {
        true => format!("plan: {done} of {} done", now.len()),
        false => format!("plan: {done} of {} done, now", now.len()),
    };
    let changed: Vec<&PlanStep> = now.iter().filter(|step| !before.contains(step)).collect();
    let more = changed.len().saturating_sub(MAX_SHOWN_STEPS);
    let mut lines = vec![heading];
    lines.extend(changed.into_iter().take(MAX_SHOWN_STEPS).map(|step| format!("  {}", step.render())));
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
    fn a_plan_is_shown_once_and_then_its_changes() {
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
        assert_eq!((shown.len(), shown.last().unwrap().as_str()), (MAX_SHOWN_STEPS + 2, "  … 8 more"));
    }

    #[test]
    fn version_2_plans_have_ids_and_can_be_removed() {
        let mut plans = Plans::default();
        let update = |id: &str| json!({"sessionUpdate": "plan_update", "plan": {"type": "items", "planId": id, "entries": [{"content": "a"}]}});
        assert_eq!(plans.update(&update("1")).len(), 2);
        assert_eq!(plans.update(&update("2")).len(), 2);
        assert_eq!(plans.update(&update("1")), [""; 0]);
        let removed = json!({"sessionUpdate": "plan_removed", "planId": "1"});
        assert_eq!(plans.update(&removed), ["plan dropped"]);
        assert_eq!(plans.update(&removed), [""; 0]);
    }

    proptest! {
        #[test]
        fn any_plan_is_shown_in_bounded_lines(
            plans in vec(vec(("[ab]{0,3}", "(pending|completed|in_progress|x)?"), 0..30), 1..6),
        ) {
            let mut shown = Plans::default();
            for steps in plans {
                let steps: Vec<(&str, &str)> = steps.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
                prop_assert!(shown.update(&plan(&steps)).len() <= MAX_SHOWN_STEPS + 2);
                prop_assert!(shown.update(&plan(&steps)).is_empty());
            }
        }
    }
}
