use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Plays turns of `(updates, usage at the end)`. Compares the usage of each turn without `raw` and
/// `duration_ms`.
#[track_caller]
fn check(usage_scope: UsageScope, turns: &[(&[Value], Value)], expected: &[Value]) {
    let mut meter = Meter::new(usage_scope);
    let told: Vec<Value> = turns.iter().map(|(updates, end)| turn(&mut meter, updates, end)).collect();
    assert_eq!(told, expected);
}

fn turn(meter: &mut Meter, updates: &[Value], end: &Value) -> Value {
    meter.begin();
    updates.iter().for_each(|update| meter.update(update));
    meter.end(end);
    let Some(usage) = meter.finish(Duration::from_millis(5)) else { return Value::Null };
    assert_eq!(usage.duration_ms, Some(5));
    assert!(usage.raw.is_some());
    serde_json::to_value(Usage { duration_ms: None, raw: None, ..usage }).unwrap()
}

fn told(input: u64, output: u64) -> Value {
    json!({"input_tokens": input, "output_tokens": output, "total_tokens": input + output})
}

fn cost(amount: f64, currency: &str) -> Value {
    json!({"used": 7, "size": 100, "cost": {"amount": amount, "currency": currency}})
}

#[test]
fn a_turn_uses_the_difference_of_the_counters() {
    let end = |input: u64, output: u64| json!({"inputTokens": input, "outputTokens": output, "totalTokens": input + output});
    let turns: [(&[Value], Value); 3] = [(&[], end(100, 10)), (&[], end(250, 30)), (&[], end(250, 30))];
    check(UsageScope::Session, &turns, &[told(100, 10), told(150, 20), told(0, 0)]);
    check(UsageScope::Turn, &turns, &[told(100, 10), told(250, 30), told(250, 30)]);
}

fn report(input: u64, output: u64) -> Value {
    json!({"inputTokens": input, "outputTokens": output, "totalTokens": input + output})
}

fn used(used: u64) -> Value {
    json!({"used": used, "size": 1000})
}

#[track_caller]
fn check_detected(reports: &[(u64, u64)], expected: &[(u64, u64)]) {
    let turns: Vec<(&[Value], Value)> = reports.iter().map(|(i, o)| (&[][..], report(*i, *o))).collect();
    let expected: Vec<Value> = expected.iter().map(|(i, o)| told(*i, *o)).collect();
    check(UsageScope::Detect, &turns, &expected);
}

#[test]
fn per_turn_reports_are_recognized() {
    // One equal report may come from a turn without the model. A second equal report may not.
    check_detected(&[(104, 19), (104, 19), (104, 19), (110, 30)], &[(104, 19), (0, 0), (104, 19), (110, 30)]);
    check_detected(
        &[(900, 100), (900, 100), (2300, 200), (3600, 400)],
        &[(900, 100), (0, 0), (1400, 100), (1300, 200)],
    );
    // A counter is lower than before, so reports cover one turn.
    check_detected(&[(104, 19), (150, 12), (180, 90)], &[(104, 19), (150, 12), (180, 90)]);
    // Totals that only grow are totals of the session.
    check_detected(&[(104, 19), (250, 40), (400, 50)], &[(104, 19), (146, 21), (150, 10)]);
}

#[test]
fn a_turn_uses_at_least_its_context() {
    let with_context = |tokens: u64| json!({"context_length": tokens});
    let turn = |context: u64, mut told: Value| {
        told.as_object_mut().unwrap().extend(with_context(context).as_object().unwrap().clone());
        told
    };
    // The total has grown by 24, but the context has 140 tokens, so the numbers are not totals of the
    // session.
    let updates = [[used(120)], [used(140)]];
    check(
        UsageScope::Detect,
        &[(&updates[0], report(100, 23)), (&updates[1], report(121, 26))],
        &[turn(120, told(100, 23)), turn(140, told(121, 26))],
    );
    // The total has grown by 141, so the numbers may be totals of the session.
    check(
        UsageScope::Detect,
        &[(&updates[0], report(100, 23)), (&updates[1], report(220, 44))],
        &[turn(120, told(100, 23)), turn(140, told(120, 21))],
    );
    // If a report equals the previous one, the model was called only if the context has grown.
    for (context, second) in [(140, told(100, 23)), (120, told(0, 0))] {
        let updates = [[used(120)], [used(context)]];
        check(
            UsageScope::Detect,
            &[(&updates[0], report(100, 23)), (&updates[1], report(100, 23))],
            &[turn(120, told(100, 23)), turn(context, second)],
        );
    }
    // A context that equals the total proves nothing.
    let updates = [[used(123)], [used(264)]];
    check(
        UsageScope::Detect,
        &[(&updates[0], report(100, 23)), (&updates[1], report(220, 44))],
        &[turn(123, told(100, 23)), turn(264, told(120, 21))],
    );
}

#[test]
fn known_agents_and_settings_skip_detection() {
    for (name, known) in [
        ("OpenCode", UsageScope::Turn),
        ("@zed-industries/codex-acp", UsageScope::Turn),
        ("narrows", UsageScope::Session),
        ("@mistralai/mistral-vibe", UsageScope::Session),
        ("opencode-like", UsageScope::Detect),
        ("", UsageScope::Detect),
    ] {
        assert_eq!(UsageScope::Detect.or_known(name), known, "{name}");
        assert_eq!(UsageScope::Session.or_known(name), UsageScope::Session, "{name}");
        assert_eq!(UsageScope::Turn.or_known(name), UsageScope::Turn, "{name}");
    }
}

#[test]
fn usage_of_two_prompts_of_one_turn_is_added() {
    for (usage_scope, second, sum) in [
        (UsageScope::Turn, report(111, 0), told(222, 0)),
        (UsageScope::Detect, report(111, 0), told(222, 0)),
        (UsageScope::Session, report(230, 5), told(230, 5)),
        (UsageScope::Detect, report(230, 5), told(230, 5)),
    ] {
        let mut meter = Meter::new(usage_scope);
        meter.begin();
        meter.end(&report(111, 0));
        meter.next_prompt();
        assert_eq!(turn(&mut meter, &[], &second), sum, "{usage_scope:?}");
    }
}

#[test]
fn usage_before_the_first_turn_is_not_counted() {
    let mut meter = Meter::new(UsageScope::Detect);
    meter.end(&report(500, 50));
    meter.call(&report(9, 9));
    assert_eq!(turn(&mut meter, &[], &report(600, 60)), told(100, 10));
}

#[test]
fn a_counter_that_went_down_was_reset() {
    let end = |input: u64, output: u64| json!({"input_tokens": input, "output_tokens": output});
    check(
        UsageScope::Session,
        &[(&[], end(100, 10)), (&[], end(60, 12)), (&[], end(70, 13)), (&[], end(80, 3))],
        &[told(100, 10), told(60, 12), told(10, 1), told(80, 3)],
    );
}

#[test]
fn a_silent_turn_changes_nothing() {
    let end = |input: u64, output: u64| json!({"inputTokens": input, "outputTokens": output});
    check(
        UsageScope::Session,
        &[(&[], end(100, 10)), (&[], Value::Null), (&[], json!([1])), (&[], end(150, 15))],
        &[told(100, 10), Value::Null, Value::Null, told(50, 5)],
    );
}

#[test]
fn a_missing_counter_keeps_its_last_value() {
    check(
        UsageScope::Session,
        &[
            (&[], json!({"inputTokens": 100, "outputTokens": 10})),
            (&[], json!({"outputTokens": 15, "totalTokens": "many"})),
            (&[], json!({"inputTokens": 180.0, "outputTokens": -3})),
        ],
        &[told(100, 10), json!({"output_tokens": 5}), json!({"input_tokens": 80})],
    );
}

#[test]
fn caches_are_part_of_the_input() {
    // The cached tokens are part of the input, because the total has no room for them.
    check(
        UsageScope::Session,
        &[(&[], json!({"inputTokens": 100, "outputTokens": 10, "totalTokens": 110, "cachedReadTokens": 80}))],
        &[json!({"input_tokens": 100, "cache_read_tokens": 80, "output_tokens": 10, "total_tokens": 110})],
    );
    // The cached tokens are counted in addition to the input.
    check(
        UsageScope::Session,
        &[(
            &[],
            json!({"input_tokens": 20, "output_tokens": 10, "total_tokens": 115,
                "cached_read_tokens": 80, "cached_write_tokens": 5}),
        )],
        &[json!({"input_tokens": 105, "cache_read_tokens": 80, "cache_write_tokens": 5,
            "output_tokens": 10, "total_tokens": 115})],
    );
    // Without a total, nothing shows that cached tokens are counted separately.
    check(
        UsageScope::Session,
        &[(&[], json!({"inputTokens": 100, "outputTokens": 10, "cacheReadTokens": 80}))],
        &[json!({"input_tokens": 100, "cache_read_tokens": 80, "output_tokens": 10, "total_tokens": 110})],
    );
    // The reports cover one turn each, not the session.
    let end = |input: u64, read: u64| json!({"inputTokens": input, "outputTokens": 0, "totalTokens": input + read, "cachedReadTokens": read});
    check(
        UsageScope::Session,
        &[(&[], end(10, 0)), (&[], end(15, 40))],
        &[
            json!({"input_tokens": 10, "cache_read_tokens": 0, "output_tokens": 0, "total_tokens": 10}),
            json!({"input_tokens": 45, "cache_read_tokens": 40, "output_tokens": 0, "total_tokens": 45}),
        ],
    );
}

#[test]
fn thoughts_are_output() {
    let thoughts = |total: u64| {
        json!({"inputTokens": 100, "outputTokens": 10, "totalTokens": total,
            "cachedReadTokens": 40, "thoughtTokens": 60})
    };
    let expected = |input: u64, output: u64| json!({"input_tokens": input, "cache_read_tokens": 40, "output_tokens": output, "total_tokens": input + output});
    check(UsageScope::Session, &[(&[], thoughts(110))], &[expected(100, 10)]);
    check(UsageScope::Session, &[(&[], thoughts(170))], &[expected(100, 70)]);
    check(UsageScope::Session, &[(&[], thoughts(150))], &[expected(140, 10)]);
    check(UsageScope::Session, &[(&[], thoughts(210))], &[expected(140, 70)]);
}

#[test]
fn updates_report_the_context_and_the_cost() {
    let priced = |cost: f64| json!({"context_length": 7, "cost_usd": cost});
    check(
        UsageScope::Session,
        &[
            (&[cost(0.1, "USD")], Value::Null),
            (&[cost(0.2, "usd"), cost(0.3, "USD")], Value::Null),
            (&[], Value::Null),
            (&[json!({"used": 9, "size": 100})], Value::Null),
            (&[cost(0.05, "USD")], Value::Null),
            (&[cost(3.0, "EUR")], Value::Null),
            (&[cost(4.0, "USD")], Value::Null),
            (&[json!({"used": "x", "cost": {"amount": "1", "currency": "USD"}})], Value::Null),
        ],
        &[
            priced(0.1),
            priced(0.2),
            Value::Null,
            json!({"context_length": 9}),
            priced(0.05),
            json!({"context_length": 7}),
            priced(4.0),
            json!({"context_length": 7}),
        ],
    );
}

#[test]
fn cost_before_the_first_turn_is_not_counted() {
    let mut meter = Meter::new(UsageScope::Session);
    meter.update(&cost(2.0, "USD"));
    assert_eq!(meter.finish(Duration::ZERO), None);
    assert_eq!(turn(&mut meter, &[cost(2.5, "USD")], &Value::Null)["cost_usd"], 0.5);
    // A late report counts for the next turn.
    meter.update(&cost(2.75, "USD"));
    assert_eq!(turn(&mut meter, &[], &json!({"inputTokens": 1}))["cost_usd"], 0.25);
}

#[test]
fn the_raw_report_is_kept() {
    let mut meter = Meter::new(UsageScope::Session);
    meter.begin();
    meter.update(&json!({"used": 1}));
    meter.update(&json!({"used": 2}));
    meter.end(&json!({"inputTokens": 3, "maxOutputTokens": 9, "_meta": {}}));
    let usage = meter.finish(Duration::from_secs(1)).unwrap();
    assert_eq!(
        serde_json::to_value(&usage).unwrap(),
        json!({"input_tokens": 3, "context_length": 2, "max_output_tokens": 9, "duration_ms": 1000,
            "raw": {"usage": {"inputTokens": 3, "maxOutputTokens": 9, "_meta": {}}, "usage_update": {"used": 2}}})
    );
    assert_eq!(serde_json::from_value::<Usage>(serde_json::to_value(&usage).unwrap()).unwrap(), usage);
}

fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<u64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        Just(json!("USD")),
    ];
    let names = prop::sample::select(vec![
        "inputTokens",
        "output_tokens",
        "totalTokens",
        "cached_read_tokens",
        "cacheWriteTokens",
        "thoughtTokens",
        "used",
        "cost",
        "amount",
        "currency",
        "maxOutputTokens",
    ]);
    leaf.prop_recursive(3, 24, 8, move |inner| {
        prop::collection::hash_map(names.clone(), inner, 0..8)
            .prop_map(|fields| fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
    })
}

proptest! {
    #[test]
    fn any_report_is_counted_without_panic(turns in prop::collection::vec((anything(), anything()), 1..6)) {
        let mut meter = Meter::new(UsageScope::Session);
        for (update, end) in turns {
            meter.begin();
            meter.update(&update);
            meter.end(&end);
            if let Some(usage) = meter.finish(Duration::ZERO) {
                prop_assert!(usage.cost_usd.is_none_or(|cost| cost >= 0.0));
            }
        }
    }

    #[test]
    fn the_turns_add_up(steps in prop::collection::vec((0_u64..1000, 0_u64..1000), 1..20)) {
        let mut meter = Meter::new(UsageScope::Session);
        let (mut input, mut output, mut sum) = (0, 0, (0, 0));
        for (more_input, more_output) in steps {
            input += more_input;
            output += more_output;
            meter.begin();
            meter.end(&json!({"inputTokens": input, "outputTokens": output, "totalTokens": input + output}));
            let usage = meter.finish(Duration::ZERO).unwrap();
            prop_assert_eq!(usage.total_tokens, Some(more_input + more_output));
            sum = (sum.0 + usage.input_tokens.unwrap(), sum.1 + usage.output_tokens.unwrap());
        }
        prop_assert_eq!(sum, (input, output));
    }
}

/// qwen-code reports the usage of each model call during the turn, in two forms.
#[test]
fn usage_of_model_calls_is_added_unless_the_end_reports_it() {
    let now = json!({"inputTokens": 100, "outputTokens": 10, "totalTokens": 117, "thoughtTokens": 7, "cachedReadTokens": 60});
    let then = json!({"promptTokens": 100, "completionTokens": 10, "totalTokens": 117, "thoughtsTokens": 7, "cachedTokens": 60});
    let sum =
        json!({"input_tokens": 200, "output_tokens": 34, "total_tokens": 234, "cache_read_tokens": 120});
    for call in [now, then] {
        let mut meter = Meter::new(UsageScope::Session);
        meter.begin();
        for _ in 0..2 {
            meter.call(&call);
            meter.call(&json!("no"));
            meter.call(&call);
            // The next turn starts without earlier usage.
            assert_eq!(turn(&mut meter, &[], &Value::Null), sum);
        }
        assert_eq!(turn(&mut meter, &[], &Value::Null), Value::Null);
        meter.call(&call);
        let end = json!({"inputTokens": 3, "outputTokens": 1, "totalTokens": 4});
        assert_eq!(turn(&mut meter, &[], &end), told(3, 1));
    }
}
