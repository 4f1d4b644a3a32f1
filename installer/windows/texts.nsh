; All texts of Setup and the uninstaller, in English and Ukrainian.

!macro Text name english ukrainian
  LangString ${name} ${LANG_ENGLISH} "${english}"
  LangString ${name} ${LANG_UKRAINIAN} "${ukrainian}"
!macroend

!insertmacro Text RESEARCH_ONLY "Research use only. Not for diagnostic use." \
  "Лише для досліджень. Не для діагностики."
!insertmacro Text FOR_ME "For me only (needs no administrator)" "Лише для мене (адміністратор не потрібен)"
!insertmacro Text FOR_ALL "For everyone who uses this computer (asks for an administrator)" \
  "Для всіх, хто користується цим комп'ютером (потрібен адміністратор)"
!insertmacro Text FOLDER "Folder:" "Папка:"
!insertmacro Text BROWSE "Browse…" "Огляд…"
!insertmacro Text DESKTOP_ICON "Icon on the desktop" "Піктограма на робочому столі"
!insertmacro Text RUNTIME_FOUND \
  "The runtime of the Coral USB stick was found beside Setup and will be installed with Fieldray." \
  "Поруч із програмою встановлення знайдено середовище USB-пристрою Coral; його буде встановлено разом із Fieldray."
!insertmacro Text RUNTIME_ABSENT \
  "Fieldray needs no Coral USB stick. To use one, install its runtime (libedgetpu), or put edgetpu.dll and libusb-1.0.dll into a folder named edgetpu-runtime beside Setup and start Setup again. Setup fetches nothing from a network." \
  "Fieldray працює і без USB-пристрою Coral. Щоб користуватися ним, встановіть його середовище (libedgetpu) або покладіть edgetpu.dll та libusb-1.0.dll у папку edgetpu-runtime поруч із програмою встановлення і запустіть її знову. З мережі нічого не завантажується."
!insertmacro Text RUNTIME_WRONG \
  "The folder edgetpu-runtime beside Setup holds no edgetpu.dll for 64-bit Windows on Intel and AMD." \
  "У папці edgetpu-runtime поруч із програмою встановлення немає edgetpu.dll для 64-розрядної Windows на Intel та AMD."
!insertmacro Text RUNTIME_WITHOUT "Install Fieldray without it?" "Встановити Fieldray без нього?"
!insertmacro Text START_NOW "Start Fieldray" "Запустити Fieldray"
!insertmacro Text FINISHED \
  "Fieldray is installed. It connects to nothing.$\r$\n$\r$\nPlug in a model drive or use the pack that ships, then open a folder of films." \
  "Fieldray встановлено. Програма ні з чим не з'єднується.$\r$\n$\r$\nПід'єднайте накопичувач із моделлю або скористайтеся вбудованою, потім відкрийте папку зі знімками."
!insertmacro Text IS_RUNNING "Fieldray is running. Close it, then try again." \
  "Fieldray працює. Закрийте програму і спробуйте ще раз."
!insertmacro Text SETUP_RUNS "Setup is already running." "Програму встановлення вже запущено."
!insertmacro Text NEEDS_WINDOWS "Fieldray needs 64-bit Windows 10 or newer. Nothing was installed." \
  "Для Fieldray потрібна 64-розрядна Windows 10 або новіша. Нічого не встановлено."
!insertmacro Text NEEDS_ADMINISTRATOR \
  "What is for all users needs an administrator. Nothing was changed." \
  "Для всіх користувачів потрібні права адміністратора. Нічого не змінено."
!insertmacro Text FOLDER_NO_NAME "Name a folder with its drive, for example D:\Programs\Fieldray. Nothing was installed." \
  "Вкажіть папку разом із диском, наприклад D:\Programs\Fieldray. Нічого не встановлено."
!insertmacro Text FOLDER_TOO_LONG "The name of the folder is too long for Windows. Choose a shorter one. Nothing was installed." \
  "Шлях до папки задовгий для Windows. Виберіть коротший. Нічого не встановлено."
!insertmacro Text FOLDER_FOREIGN \
  "The folder $INSTDIR holds something else. Choose a folder that is empty or not there yet. Nothing was installed." \
  "У папці $INSTDIR є щось інше. Виберіть порожню або нову папку. Нічого не встановлено."
!insertmacro Text FOLDER_IN_USE \
  "The folder $INSTDIR is in use by another program. Close it, then start Setup again. Nothing was changed." \
  "Папку $INSTDIR використовує інша програма. Закрийте її і запустіть встановлення знову. Нічого не змінено."
!insertmacro Text NO_ROOM_LEFT \
  "There is not enough room on the disk: Fieldray needs ${SIZE_MB} MB. Nothing was installed." \
  "На диску замало місця: Fieldray потребує ${SIZE_MB} МБ. Нічого не встановлено."
!insertmacro Text NOT_WRITTEN \
  "Fieldray could not be written to $INSTDIR: the disk is full or may not be written to. Nothing was changed." \
  "Не вдалося записати Fieldray до $INSTDIR: диск заповнений або захищений від запису. Нічого не змінено."
!insertmacro Text REMOVE "Remove Fieldray from this computer." "Видалення Fieldray з цього комп'ютера."
!insertmacro Text WILL_BE_REMOVED "The program in $INSTDIR will be removed." "Програму з $INSTDIR буде видалено."
!insertmacro Text RESULTS_TOO "Delete my results, settings and trusted keys too" \
  "Видалити також мої результати, налаштування й довірені ключі"
!insertmacro Text RESULTS_STAY \
  "Otherwise they stay in $LOCALAPPDATA\fieldray, and a Fieldray installed later goes on with them. Those of other users of this computer always stay." \
  "Інакше вони залишаться в теці користувача fieldray, і пізніше встановлений Fieldray скористається ними. Дані інших користувачів завжди залишаються."
