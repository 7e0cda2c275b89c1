//! What the client is told of approvals that are not its own to give: that one is waited for, and what came of it.
//!
//! It is a thought, so that every client can show it and none takes it for the answer; `_meta.aip44` has the same for programs.

use narrows_acp::method;
use narrows_wire::message;
use serde_json::{Value, json};

use super::Pass;
use super::api::{Out, Ticket};
use super::approval::{Hearing, name_of};
use super::deadlines::words;
use super::outbox::{Otherwise, Way};
use crate::audit_events::Approved;
use crate::meta;

/// How much of the name of a tool is told.
const LONGEST: usize = 200;

impl<O: Out> Pass<'_, O> {
    /// Tells that an approval is waited for, and how it is given.
    pub(super) fn tell_waiting(&mut self, name: &str, number: u64, after: Option<Ticket>) {
        let Some(hearing) = self.gate.hearings.get(&number).filter(|hearing| hearing.told) else { return };
        let (id, needs, reason) = (name_of(&self.gate.setting, number), hearing.needed(), &hearing.reason);
        let patience = self.gate.mandate.patience.approval;
        let text = format!(
            "waiting for approval {id} of `{}` by {needs} ({reason}); `narrows approve {id} --key FILE` gives it, \
             and without it the call is refused in {}",
            tool(hearing),
            words(patience),
        );
        let about = json!({
            "approval": id, "state": "waiting", "tool": hearing.tool, "reason": reason, "needs": needs,
            "seconds": patience.as_secs(),
        });
        self.tell_approval(name, &text, about, after);
    }

    /// Tells what came of it, where the client was told that it is waited for, or nobody has answered.
    pub(super) fn tell_settled(
        &mut self,
        number: u64,
        hearing: &Hearing,
        approved: &Approved,
        after: Option<Ticket>,
    ) {
        if !hearing.told {
            return;
        }
        let id = name_of(&self.gate.setting, number);
        let mut about = json!({"approval": id, "tool": hearing.tool});
        let text = match approved {
            Approved::Refused(why) => {
                about["state"] = json!("refused");
                about["reason"] = json!(why);
                format!("approval {id} of `{}` was refused: {why} ({})", tool(hearing), hearing.reason)
            }
            Approved::By { approvers, .. } => {
                about["state"] = json!("given");
                about["by"] = json!(approvers);
                format!("approval {id} of `{}` was given by {}", tool(hearing), approvers.join(", "))
            }
            Approved::Auto | Approved::Pending => return,
        };
        self.tell_approval(&hearing.session(), &text, about, after);
    }

    fn tell_approval(&mut self, name: &str, text: &str, mut about: Value, after: Option<Ticket>) {
        self.gate.serial += 1;
        about["text"] = json!(text);
        let text = format!("\n{text}\n");
        let mut update =
            json!({"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": text}});
        if self.gate.is_v2 {
            update["messageId"] = json!(format!("aip44:{}:{}", self.gate.setting.nonce, self.gate.serial));
        }
        let meta = json!({"aip44": meta::with(&self.gate.mandate, about)});
        let params = json!({"sessionId": name, "update": update, "_meta": meta});
        if let Ok(line) = message::notification(method::SESSION_UPDATE, &params) {
            self.send(Way::ToClient, &[&line], after, Otherwise::Nothing);
        }
    }
}

fn tool(hearing: &Hearing) -> String {
    narrows_base::text::quoted(&hearing.tool, LONGEST)
}
