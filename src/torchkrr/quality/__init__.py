"""Look at your data: label errors, outliers and near duplicates (`audit`), and what to label next (`suggest`)."""

from .auditor import Audit as Audit
from .auditor import ClassSummary as ClassSummary
from .auditor import Evidence as Evidence
from .auditor import audit as audit
from .duplicates import DuplicateGroup as DuplicateGroup
from .noise import ClassNoise as ClassNoise
from .noise import fit_class_noise as fit_class_noise
from .suggestion import suggest as suggest
from .suggestion import suggestions as suggestions

__all__ = [
    "Audit",
    "ClassNoise",
    "ClassSummary",
    "DuplicateGroup",
    "Evidence",
    "audit",
    "fit_class_noise",
    "suggest",
    "suggestions",
]
