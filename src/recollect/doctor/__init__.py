"""The doctor: 35 checks of a memory and its stores, each with why it matters and the command that puts it right."""

from recollect.doctor.examination import Progress, examine
from recollect.doctor.finding import DoctorReport, Finding, Status
from recollect.doctor.patient import Patient, Place, Turns, room_at

__all__ = ["DoctorReport", "Finding", "Patient", "Place", "Progress", "Status", "Turns", "examine", "room_at"]
