//! Schemas and patterns that want to crash the server, stall it or fill its memory. Each is refused, or gives masks
//! of bounded cost; none takes long.
#![allow(clippy::unwrap_used)]

mod common;

use common::{MINI, exact, grammars, of_form, required, walk};
use overshot_chat::Start;
use overshot_grammar::{Arguments, CallCount, Form, Function, GrammarError, Grammars, Place};
use serde_json::{Map, Value, json};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

static GRAMMARS: LazyLock<Grammars> = LazyLock::new(|| grammars(&MINI));

fn schema(schema: Value) -> Form {
    Form::JsonSchema(schema)
}

fn nested(levels: usize, wrap: impl Fn(Value) -> Value) -> Value {
    (0..levels).fold(json!({"type": "null"}), |inner, _| wrap(inner))
}

/// Every one is compiled, and walked through if that works; nothing may panic, and errors stay short. Gives the
/// slowest mask.
fn tried(form: Form) -> Result<Duration, String> {
    let grammar = match GRAMMARS.compile(&of_form(form)) {
        Ok(grammar) => grammar.unwrap(),
        Err(error) => {
            let GrammarError::Unusable { place: Place::Form, path, reason } = error else {
                panic!("{error:?}")
            };
            assert!(!reason.is_empty() && reason.chars().count() <= 300, "{reason}");
            return Err(format!("{path}: {reason}"));
        }
    };
    let mut constraint = grammar.constraint(Start::Content, &[]);
    let mut rng = fastrand::Rng::with_seed(7);
    let mut slowest = Duration::ZERO;
    for _ in 0..50 {
        let asked = Instant::now();
        // An error ends this answer, and that is all.
        let Ok(Some(mask)) = constraint.mask() else { return Ok(slowest) };
        slowest = slowest.max(asked.elapsed());
        let allowed: Vec<u32> = (0..4096).filter(|token| mask.allows(*token)).collect();
        let token = rng.choice(allowed).unwrap();
        if token == MINI.end_of_sentence() || constraint.accept(token).is_err() {
            return Ok(slowest);
        }
    }
    Ok(slowest)
}

#[test]
fn unusable_schemas_are_refused_with_a_reason() {
    let cases = [
        (schema(json!("string")), "object"),
        (schema(json!(false)), "nsatisfiable"),
        (schema(json!({"type": "nothing"})), "nothing"),
        (schema(json!({"type": "integer", "minimum": 3, "maximum": 2})), "minimum"),
        (schema(json!({"$ref": "https://example.com/schema.json"})), ".$ref: "),
        (schema(json!({"$ref": "file:///etc/passwd"})), ".$ref: "),
        (schema(json!({"$ref": "#/$defs/absent"})), "absent"),
        (schema(json!({"not": {"type": "string"}})), "not"),
        (schema(json!({"uniqueItems": true, "type": "array"})), "uniqueItems"),
        (schema(nested(200, |inner| json!({"items": inner}))), "deeper"),
        (schema(json!({"enum": (0..50_000).collect::<Vec<u32>>()})), "values"),
        (schema(json!({"const": "x".repeat(1 << 20)})), "bytes"),
        (Form::Pattern("(".into()), "regex"),
        (schema(json!({"type": "integer", "multipleOf": 1_000_000_007})), "gave up"),
        (Form::Pattern(r"a\".into()), "backslash"),
        (schema(json!({"$ref": "#"})), "nothing satisfies"),
        (Form::Pattern(String::new()), "empty"),
        (Form::Pattern("a".repeat(5000)), "bytes"),
        (Form::Choice(vec![]), "choice"),
        (Form::Choice(vec!["a".into(), String::new()]), "choice"),
        (Form::Choice(vec!["a".repeat(1 << 20)]), "bytes"),
    ];
    for (form, part) in cases {
        let shown: String = format!("{form:?}").chars().take(80).collect();
        let reason = tried(form).expect_err(&shown);
        println!("{shown}\n    {reason}");
        assert!(reason.contains(part), "{shown}: {reason}");
    }
}

#[test]
fn costly_ones_are_refused_or_bounded() {
    let twice = |n: usize| vec![json!({"$ref": format!("#/$defs/d{n}")}); 2];
    let doubling: Map<String, Value> = (0..30)
        .map(|n| (format!("d{n}"), json!({"anyOf": twice(n + 1)})))
        .chain([("d30".to_string(), json!({"type": "null"}))])
        .collect();
    let intersecting: Map<String, Value> = (0..20)
        .map(|n| (format!("d{n}"), json!({"allOf": twice(n + 1)})))
        .chain([("d20".to_string(), json!({"type": "object", "properties": {"a": {}}}))])
        .collect();
    let wide: Map<String, Value> =
        (0..1000).map(|n| (format!("property_{n}"), json!({"type": "string"}))).collect();
    let names: Vec<String> = (0..5000).map(|n| format!("value number {n}")).collect();
    let patterns = [
        "(a|aa)+$",
        "((((((((a{9}){9}){9}){9}){9}){9}){9}){9}){9}",
        "(.*a){12}",
        "(a?){500}a{500}",
        "[^x]*x.{200}",
        "(x+x+)+y",
        ".{1,4000}",
        "(?:a|b|c){1000,2000}",
        "(.|\n)*a(.|\n){18}",
    ];
    let mut forms: Vec<Form> = vec![
        schema(json!({"$defs": doubling, "$ref": "#/$defs/d0"})),
        schema(json!({"$defs": intersecting, "$ref": "#/$defs/d0"})),
        schema(json!({"$ref": "#"})),
        schema(
            json!({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}),
        ),
        schema(json!({"allOf": [{"$ref": "#"}, {"type": "object"}]})),
        schema(json!({"type": "object", "properties": wide})),
        schema(json!({"enum": names})),
        schema(json!({"type": "string", "minLength": 1_000_000_000})),
        schema(json!({"type": "string", "maxLength": 4_000_000_000u64})),
        schema(json!({"type": "array", "minItems": 1_000_000_000})),
        schema(
            json!({"type": "array", "maxItems": 100_000, "items": {"type": "array", "maxItems": 100_000}}),
        ),
        schema(json!({"type": "number", "minimum": -1.7e308, "maximum": 1.7e308, "multipleOf": 1e-300})),
        schema(json!({"type": "integer", "multipleOf": 1_000_000_007})),
        schema(nested(60, |inner| json!({"anyOf": [inner, {"type": "string"}]}))),
        schema(json!({"title": "ä".repeat(200), "type": ["ä".repeat(200)]})),
        schema(json!({"x-guidance": {"lenient": true}, "not": {}})),
    ];
    forms.extend(patterns.map(|pattern| Form::Pattern(pattern.to_string())));
    forms.extend(patterns.map(|pattern| schema(json!({"type": "string", "pattern": pattern}))));
    for form in forms {
        let shown: String = format!("{form:?}").chars().take(80).collect();
        let started = Instant::now();
        let outcome = tried(form);
        println!("{:6.0} ms {shown}\n    {outcome:?}", started.elapsed().as_secs_f64() * 1e3);
    }
}

#[test]
fn trouble_in_a_function_names_it() {
    let good = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    let bad = |schema: Value| {
        let functions = vec![exact(4, "good", good.clone()), exact(7, "bad", schema)];
        GRAMMARS.compile(&required(functions, CallCount::Several)).unwrap_err()
    };
    for (schema, wanted) in [
        (json!({"anyOf": [{}]}), ".anyOf"),
        (json!({"properties": {"a": {"items": {"$ref": "http://x"}}}}), ".properties.a.items.$ref"),
        (json!({"properties": {"a": {"type": "array", "uniqueItems": true}}}), ""),
        (json!({"properties": {"a": false}, "required": ["a"]}), ""),
    ] {
        let error = bad(schema.clone());
        let GrammarError::Unusable { place, path, reason } = &error else { panic!("{error:?}") };
        assert_eq!((*place, path.as_str()), (Place::Function(7), wanted), "{schema}: {reason}");
    }
    let many = (0..300).map(|index| exact(index, "many", good.clone())).collect();
    let error = GRAMMARS.compile(&required(many, CallCount::One)).unwrap_err();
    assert!(matches!(error, GrammarError::Unusable { place: Place::Functions, .. }), "{error:?}");
}

#[test]
fn a_preference_that_cannot_be_held_is_dropped() {
    let unusable = json!({"properties": {"a": {"type": "array", "uniqueItems": true}}});
    let preferred = Function { index: 0, name: "f".into(), arguments: Arguments::Preferred(unusable) };
    let grammar = GRAMMARS.compile(&required(vec![preferred], CallCount::One)).unwrap().unwrap();
    let mut rng = fastrand::Rng::with_seed(1);
    assert!(!walk(grammar.constraint(Start::Content, &[]).as_mut(), &MINI, 300, &mut rng).tokens.is_empty());
}
