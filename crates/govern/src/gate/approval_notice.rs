//! Notices to the client about approvals of other approvers: pending, approved or refused.
//!
//! A notice is a thought chunk: every client can show a thought, and no client takes a thought for the
//! answer. `_meta.aip44` has the same information for programs.

use narrows_acp::method;
use narrows_wire::message;
use serde_json::{Value, json};

use super::GateCtx;
use super::api::{AuditSeq, GateOutput};
use super::approval::{PendingApproval, approval_name};
use super::deadlines::format_duration;
use super::outbox::{GateDirection, OnAuditFailure};
use crate::audit_events::ApprovalOutcome;
use crate::meta;

const MAX_TOOL_CHARS: usize = 200;

impl<O: GateOutput> GateCtx<'_, O> {
    pub(super) fn notify_approval_pending(&mut self, name: &str, number: u64, after: Option<AuditSeq>) {
        let Some(approval) = self.gate.approvals.get(&number).filter(|approval| approval.notifies_client)
        else {
            return;
        };
        let (id, needs, reason) =
            (approval_name(&self.gate.start, number), approval.describe_requirements(), &approval.reason);
        let timeouts = self.gate.config.timeouts.approval;
        let text = format!(
            "waiting for approval {id} of `{}` by {needs} ({reason}); `narrows approve {id} --key FILE` gives it, \
             and without it the call is refused in {}",
            shown_tool(approval),
            format_duration(timeouts),
        );
        let about = json!({
            "approval": id, "state": "waiting", "tool": approval.tool, "reason": reason, "needs": needs,
            "seconds": timeouts.as_secs(),
        });
        self.send_approval_notice(name, &text, about, after);
    }

    /// Reports the outcome of an approval to a client that was notified of the approval, or that did not
    /// answer its permission request in time.
    pub(super) fn notify_approval_settled(
        &mut self,
        number: u64,
        approval: &PendingApproval,
        outcome: &ApprovalOutcome,
        after: Option<AuditSeq>,
    ) {
        if !approval.notifies_client {
            return;
        }
        let id = approval_name(&self.gate.start, number);
        let mut about = json!({"approval": id, "tool": approval.tool});
        let text = match outcome {
            ApprovalOutcome::Refused(why) => {
                about["state"] = json!("refused");
                about["reason"] = json!(why);
                format!(
                    "approval {id} of `{}` was refused: {why} ({})",
                    shown_tool(approval),
                    approval.reason
                )
            }
            ApprovalOutcome::By { approvers, .. } => {
                about["state"] = json!("given");
                about["by"] = json!(approvers);
                format!("approval {id} of `{}` was given by {}", shown_tool(approval), approvers.join(", "))
            }
            ApprovalOutcome::Auto | ApprovalOutcome::Pending => return,
        };
        self.send_approval_notice(&approval.session(), &text, about, after);
    }

    fn send_approval_notice(&mut self, name: &str, text: &str, mut about: Value, after: Option<AuditSeq>) {
        self.gate.serial += 1;
        about["text"] = json!(text);
        let text = format!("\n{text}\n");
        let mut update =
            json!({"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": text}});
        if self.gate.is_v2 {
            update["messageId"] = json!(format!("aip44:{}:{}", self.gate.start.nonce, self.gate.serial));
        }
        let meta = json!({"aip44": meta::mark_with(&self.gate.config, about)});
        let params = json!({"sessionId": name, "update": update, "_meta": meta});
        if let Ok(line) = message::notification(method::SESSION_UPDATE, &params) {
            self.send(GateDirection::ToClient, &[&line], after, OnAuditFailure::Drop);
        }
    }
}

fn shown_tool(approval: &PendingApproval) -> String {
    narrows_base::text::quoted(&approval.tool, MAX_TOOL_CHARS)
}
