//! Builds the system prompt of an operator.

use std::fmt::Write;

use narrows_manifest::types::operator::{Autonomy, Operator};
use narrows_manifest::{Bundle, Skill};

/// Builds the prompt in this order: role, voice, boundaries, skills, and a note about the governance.
pub(super) fn build(operator: &Operator, bundle: &Bundle) -> String {
    render(operator, &bundle.skills, bundle.governance.is_some())
}

fn render(operator: &Operator, skills: &[Skill], is_governed: bool) -> String {
    let Operator { name, persona_summary, profile, governance, .. } = operator;
    let mut text = format!("You are {name}. {persona_summary}\n\n# Role\n\n{}\n", profile.role.trim());
    // Writing to a string does not fail.
    let _ = write!(text, "\n# Voice\n\n{}\n", profile.voice.trim());
    if !profile.boundaries.is_empty() {
        text.push_str("\n# Boundaries\n\n");
        for boundary in &profile.boundaries {
            let _ = writeln!(text, "- {}", boundary.trim());
        }
    }
    if !skills.is_empty() {
        text.push_str("\n# Skills\n");
        for skill in skills {
            let _ = write!(text, "\n## {}\n\n{}\n", skill.id, skill.body.trim());
        }
    }
    if is_governed {
        text.push_str(
            "\n# Governance\n\nEvery call of a tool is decided by policies before it is made, and recorded. If one is \
             refused, say so and do not look for a way around it.",
        );
        text.push_str(match governance.as_ref().map(|binding| binding.autonomy) {
            Some(Autonomy::Supervised) => " Every action that changes something needs a person's approval.\n",
            Some(Autonomy::Gated) => " Every turn needs a person's approval.\n",
            Some(Autonomy::Autonomous) | None => "\n",
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use insta::assert_snapshot;

    use super::*;

    #[test]
    fn sections_keep_their_order() {
        let operator: Operator = serde_json::from_value(serde_json::json!({
            "name": "Notes", "id": "notes", "persona_summary": "Keeps notes.", "version": "1.0.0",
            "profile": {"role": "Keep notes.", "voice": "Short.", "boundaries": ["Never delete."]},
            "governance": {"audit_log": "audit:default", "autonomy": "supervised"},
        }))
        .expect("an operator");
        let skill = Skill {
            id: "filing".into(),
            path: "skills/filing/SKILL.md".into(),
            description: "d".into(),
            body: "\nFile by date.\n".into(),
            allow: None,
        };
        assert_snapshot!(render(&operator, &[skill], true), @r"
        You are Notes. Keeps notes.

        # Role

        Keep notes.

        # Voice

        Short.

        # Boundaries

        - Never delete.

        # Skills

        ## filing

        File by date.

        # Governance

        Every call of a tool is decided by policies before it is made, and recorded. If one is refused, say so and do not look for a way around it. Every action that changes something needs a person's approval.
        ");
        let bare = render(&operator, &[], false);
        assert!(!bare.contains("# Skills") && !bare.contains("# Governance"), "{bare}");
    }
}
