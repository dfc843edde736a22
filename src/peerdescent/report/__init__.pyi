from .document import write as write
