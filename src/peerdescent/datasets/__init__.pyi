from .dataset import Dataset as Dataset
from .dataset import Partition as Partition
from .loader import load as load
from .planted import synthetic as synthetic
from .sets import SETS as SETS
from .sets import NamedSet as NamedSet
